//! A version becomes current: the end of its job, the version, the lane and the jobs that follow commit together or not at all.

use deadpool_postgres::Object;
use pitwheel::transaction::tokio_postgres as engine;
use pitwheel::{Completion, Context, Settled};

use crate::error::Error;
use crate::kinds::Load;
use crate::store::{lanes, syncs, versions};

/// A version with all its rows.
pub(crate) struct Ready {
    pub(crate) lane_id: i64,
    pub(crate) version: i64,
    pub(crate) rows: i64,
    pub(crate) rejected: i64,
}

/// Completes the job of a version, and makes the version current. False: the job belongs to another worker now, and nothing was
/// written.
pub(crate) async fn make_current(
    client: &mut Object,
    context: &Context,
    (ready, completion): (&Ready, Completion),
    followers: &[Load],
) -> Result<bool, Error> {
    let transaction = client.transaction().await?;
    // The fenced write first. No other claim of this job can write after it.
    let completed = engine::complete_with(&transaction, context, completion).await?;
    if completed.settled == Settled::Lost {
        return Ok(false);
    }
    lanes::lock(&transaction, ready.lane_id).await?;
    let finished = versions::finish(&transaction, ready.version, ready.rows, ready.rejected).await?
        && lanes::make_current(&transaction, ready.lane_id, ready.version).await?;
    if !finished {
        return Ok(false);
    }
    for follower in followers {
        syncs::add(&transaction, follower, None).await?;
    }
    transaction.commit().await?;
    Ok(true)
}

/// Completes a job that loads nothing itself, with the jobs that follow. False: the job belongs to another worker now.
pub(crate) async fn complete(
    client: &mut Object,
    context: &Context,
    completion: Completion,
    followers: &[Load],
) -> Result<bool, Error> {
    let transaction = client.transaction().await?;
    let completed = engine::complete_with(&transaction, context, completion).await?;
    if completed.settled == Settled::Lost {
        return Ok(false);
    }
    for follower in followers {
        syncs::add(&transaction, follower, None).await?;
    }
    transaction.commit().await?;
    Ok(true)
}
