//! Deletes old versions, and what processes left behind.

use pitwheel::{Context, State, Verdict};

use crate::error::Error;
use crate::ingest::Ingest;
use crate::store::{rows, syncs, versions};

/// Loaded versions of a lane that are kept: the current one and those that can be promoted again.
const KEPT: i64 = 3;
/// Versions that are looked at in one statement.
const PAGE: i64 = 100;
/// Versions that are deleted in one run; the rest is deleted in the next.
const DELETED_MAX: usize = 1000;

/// The handler of the recurring job.
pub(crate) async fn run(ingest: &Ingest, context: &Context) -> Result<Verdict, Error> {
    drop_abandoned(ingest).await?;
    let mut client = ingest.client().await?;
    for (id, lane) in versions::superseded(&client, KEPT, PAGE).await? {
        versions::drop_superseded(&mut client, id, lane).await?;
    }
    let mut deleted = 0;
    loop {
        let dropped = versions::dropped(&client, PAGE).await?;
        if dropped.is_empty() || deleted >= DELETED_MAX || context.is_cancelled() {
            break;
        }
        deleted += dropped.len();
        for id in dropped {
            rows::delete_data(&client, id).await?;
            rows::delete_rejected(&client, id).await?;
            versions::remove(&client, id).await?;
        }
    }
    syncs::prune(&client).await?;
    if let Err(error) = ingest.uploads().delete_old().await {
        tracing::warn!(%error, "cannot delete old uploads");
    }
    Ok(Verdict::complete().into())
}

/// Drops versions that no attempt loads any more: the job is not running, or was claimed again since.
async fn drop_abandoned(ingest: &Ingest) -> Result<(), Error> {
    let client = ingest.client().await?;
    let mut after = 0;
    loop {
        let page = versions::loading(&client, PAGE, after).await?;
        let Some(last) = page.last() else { return Ok(()) };
        after = last.0;
        for (id, job, fence) in page {
            let is_loading = match ingest.pitwheel().job(job).await {
                Ok(found) => found.summary.state == State::Running && found.fence == fence,
                Err(pitwheel::Error::NotFound(..)) => false,
                Err(error) => return Err(error.into()),
            };
            if !is_loading {
                versions::drop_loading(&client, id).await?;
            }
        }
    }
}
