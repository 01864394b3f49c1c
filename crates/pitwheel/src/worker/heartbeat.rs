//! The loop that keeps a worker alive: it renews the lease, writes progress, and passes cancels on.

use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use crate::engine::lease::{Renewed, cancel_requests, progress, register, renew};
use crate::engine::maintenance::RENEWALS;
use crate::engine::retry::RetryDelay;
use crate::error::Error;
use crate::worker::core::Core;
use crate::worker::settler::delete_emptied;

/// How often progress is written.
const PROGRESS: Duration = Duration::from_secs(1);

/// Runs until the last ending is written.
pub(super) async fn run(core: &Core, ended: &CancellationToken) {
    let every = core.registration.lease / RENEWALS;
    let mut retry_delay = RetryDelay::default();
    let mut next = Instant::now();
    while !ended.is_cancelled() {
        match heartbeat(core, &mut next, every).await {
            Ok(()) => retry_delay.reset(),
            Err(error) => {
                tracing::warn!(%error, worker = core.name(), "cannot renew the lease, will try again");
                retry_delay.wait(ended).await;
                continue;
            }
        }
        let pause = next.saturating_duration_since(Instant::now()).min(PROGRESS);
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = core.cancel.notified() => next = Instant::now(),
            () = ended.cancelled() => {}
        }
    }
}

async fn heartbeat(core: &Core, next: &mut Instant, every: Duration) -> Result<(), Error> {
    let reports = core.take_progress();
    if !reports.is_empty() {
        core.pool.run(async |client| progress(&client, &reports).await).await?;
    }
    if Instant::now() < *next {
        return Ok(());
    }
    let renewed = core.pool.run(async |client| renew(&client, core.id()).await).await?;
    match renewed {
        Renewed::Alive => {}
        Renewed::Drain => core.stop.cancel(),
        Renewed::Dead => {
            let id = core.pool.run(async |client| register(&client, &core.registration).await).await?;
            tracing::warn!(
                worker = core.name(),
                "declared dead while alive: its jobs are given to others, and it goes on under a new id"
            );
            core.reregistered(id);
        }
    }
    let requests = core.pool.run(async |client| cancel_requests(&client, &[core.id()]).await).await?;
    core.request_cancel(requests.into_iter().map(|(_, claim)| claim));
    delete_emptied(core).await?;
    *next = Instant::now() + every;
    Ok(())
}
