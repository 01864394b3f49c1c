//! Compares the open streams with the database: other nodes change what belongs to them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pitwheel::Error;
use pitwheel::engine::{Pool, alive_workers, held, settle};
use tokio::sync::Notify;

use crate::dispatch::comparison;
use crate::dispatch::streams::SharedStreams;

/// Time between two comparisons.
const EVERY: Duration = comparison::EVERY_MIN;

pub(crate) struct Reconciler {
    pub(crate) pool: Pool,
    pub(crate) streams: SharedStreams,
    /// Notified when a worker was made quiet, drained or resumed, or has signed off.
    pub(crate) command: Arc<Notify>,
}

/// Compares until the node stops.
pub(crate) async fn run(reconciler: Reconciler) {
    let mut next = Instant::now() + EVERY;
    loop {
        let commanded = tokio::select! {
            () = tokio::time::sleep_until(next.into()) => false,
            () = reconciler.command.notified() => true,
        };
        if let Err(error) = reconciler.look_at_workers().await {
            tracing::warn!(%error, "cannot read which workers are alive, will retry");
        }
        if commanded {
            continue;
        }
        next = Instant::now() + EVERY;
        reconciler.streams.lock().cut_unread(Instant::now());
        if let Err(error) = reconciler.free_settled_elsewhere().await {
            tracing::warn!(%error, "cannot read what workers hold, will retry");
        }
        if let Err(error) = reconciler.delete_emptied().await {
            tracing::warn!(%error, "cannot delete empty holds, will retry");
        }
    }
}

impl Reconciler {
    /// Frees slots whose job was settled through another node.
    async fn free_settled_elsewhere(&self) -> Result<(), Error> {
        let (workers, claims) = {
            let mut streams = self.streams.lock();
            let workers = streams.due_for_comparison();
            let claims = streams.claims_of(&workers);
            (workers, claims)
        };
        if !workers.is_empty() {
            let held = self.pool.run(async |client| held(&*client, &workers).await).await?;
            self.streams.lock().reconcile(&workers, &claims, &held);
        }
        Ok(())
    }

    /// Deletes holds of which every job has ended. Reports delete them too, but no result may ever be reported to this node.
    async fn delete_emptied(&self) -> Result<(), Error> {
        let emptied = self.streams.lock().take_emptied();
        if emptied.is_empty() {
            return Ok(());
        }
        let deleted = self.pool.run(async |client| settle(&*client, &[], &emptied).await).await;
        deleted.map(drop).inspect_err(|_| self.streams.lock().put_back_emptied(emptied))
    }

    /// Ends the streams of workers that are dead, and finds out which get no more jobs, so that no slots of them are offered to claims:
    /// a claim for these alone finds nothing, and the claims after it would begin behind the jobs that are due.
    async fn look_at_workers(&self) -> Result<(), Error> {
        let workers = self.streams.lock().workers();
        if !workers.is_empty() {
            let alive = self.pool.run(async |client| alive_workers(&*client, &workers).await).await?;
            self.streams.lock().set_alive(&workers, &alive);
        }
        Ok(())
    }
}
