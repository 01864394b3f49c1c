//! The loops of a worker at the database, from its registration to its last ending.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::engine::claim::claim_by_id;
use crate::engine::claim_sink::ClaimSink;
use crate::engine::claimer::run_claimer;
use crate::engine::lease::{self, Registration};
use crate::engine::maintenance::{maintain, prepare_history};
use crate::engine::retry::RetryDelay;
use crate::engine::unknown_claims::UNKNOWN_SOON;
use crate::error::Error;
use crate::job::claim::ClaimRefusal;
use crate::postgres::{Pool, migrate};
use crate::worker::core::Core;
use crate::worker::heartbeat::{Renewals, report_progress};
use crate::worker::settler;

/// How long a worker looks at its end for jobs of its last claim.
const LAST_LOOK: Duration = Duration::from_secs(5);

/// The id of the only job to run, and where to say why it was not claimed.
pub(super) type OnlyJob<'a> = (i64, &'a mut Option<Result<Option<ClaimRefusal>, Error>>);

/// Claims the job and starts it. Returns why it was not claimed.
async fn start_only(core: &Arc<Core>, id: i64) -> Result<Option<ClaimRefusal>, Error> {
    let kinds = &core.registration.kinds;
    let claimed =
        core.pool.run(async |client| claim_by_id(&client, core.id(), id, kinds, None).await).await?;
    Ok(match claimed {
        Ok(job) => {
            core.start(vec![job]);
            None
        }
        Err(refusal) => Some(refusal),
    })
}

/// The loops of a worker, until it has stopped and the last ending is written.
pub(super) async fn run_loops(
    core: &Arc<Core>,
    renewals: Renewals,
    shut: &CancellationToken,
    grace: Duration,
    keep_history: Duration,
    only: Option<OnlyJob<'_>>,
) {
    let (closed, ended) = (CancellationToken::new(), CancellationToken::new());
    let work = async {
        let is_uncertain = match only {
            Some((id, found)) => matches!(found.insert(start_only(core, id).await), Err(Error::Database(_))),
            None => run_claimer(core).await,
        };
        finish(core, is_uncertain, core.finish_within(grace, shut)).await;
        core.endings.close();
        closed.cancel();
    };
    let endings = async {
        settler::run(core, &closed).await;
        ended.cancel();
    };
    let lease = core.registration.lease;
    let maintenance = maintain((&core.pool, &core.sweep_pool), core.name(), lease, keep_history, &ended);
    // On the heap, because each future that contains another one has room for it twice.
    let (work, endings, maintenance) = (Box::pin(work), Box::pin(endings), Box::pin(maintenance));
    let renewals = Box::pin(renewals.run(core.clone(), ended.clone()));
    let progress = Box::pin(report_progress(core, &ended));
    let beside = async { tokio::join!(progress, maintenance) };
    // Dropped at the end: while the database is away, each statement waits for its time limit. What they write is whole or not written.
    tokio::join!(work, endings, renewals, ended.run_until_cancelled(beside));
}

/// Waits for the last handlers. If the last claim failed, it may have been committed: its jobs, which never started, are looked for and
/// released meanwhile, or at the end. Otherwise they would wait for the end of this worker, and then count a crash.
async fn finish(core: &Arc<Core>, is_uncertain: bool, handlers: impl Future<Output = ()>) {
    if !is_uncertain {
        return handlers.await;
    }
    let look = async || {
        tokio::time::sleep(UNKNOWN_SOON).await;
        core.release_unknown(LAST_LOOK).await
    };
    let found = async {
        while let Err(error) = look().await {
            tracing::warn!(%error, worker = core.name(), "cannot look for jobs of the last claim, will try again");
        }
    };
    let mut found = pin!(found);
    let mut handlers = pin!(handlers);
    tokio::select! {
        () = &mut handlers => {
            let _ = tokio::time::timeout(LAST_LOOK, found).await;
        }
        () = &mut found => handlers.await,
    }
}

/// Registers, however long the database is away or has no connection to give.
pub(super) async fn enter(pool: &Pool, worker: &Registration) -> Result<i64, Error> {
    let mut retry_delay = RetryDelay::default();
    loop {
        let entered = pool.run(async |client| {
            migrate::check(&client).await?;
            if let Err(error) = prepare_history(&client).await {
                // The maintenance tries it again, and counts what fails.
                tracing::warn!(%error, worker = worker.name, "cannot create the partitions of the history");
            }
            lease::register(&client, worker).await
        });
        match entered.await {
            Err(error) if error.is_transient() => {
                tracing::warn!(%error, worker = worker.name, "cannot start yet, will try again");
                retry_delay.wait(&CancellationToken::new()).await;
            }
            other => return other,
        }
    }
}
