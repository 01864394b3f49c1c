//! The loops that keep a worker alive and look after the dead: lease, progress, cancels; sweep and prune.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::core::Core;
use super::settler::forget_emptied;
use crate::claimer::RetryDelay;
use crate::error::Error;
use crate::lease::{Renewed, cancel_requests, progress, register, renew};

/// Renewals per lease: five may fail before the sixth is too late.
const RENEWALS: u32 = 6;
/// How often progress is written.
const PROGRESS: Duration = Duration::from_secs(1);
/// Sweeps per lease.
const TICKS: u32 = 20;
/// If nobody swept for this part of a lease, nobody could renew either. It must be below the part that is left of a lease
/// when its renewal is due (5/6), with room for the renewals to come through first.
const GAP_PARTS: u32 = 4;
const PRUNE: Duration = Duration::from_secs(3600);

/// Renews the lease, writes progress and passes cancels on, until the last ending is written.
pub(super) async fn run(core: &Arc<Core>, ended: &CancellationToken) {
    let every = core.registration.lease / RENEWALS;
    let mut retry_delay = RetryDelay::default();
    let mut next = Instant::now();
    while !ended.is_cancelled() {
        match beat(core, &mut next, every).await {
            Ok(()) => retry_delay.reset(),
            Err(error) => {
                tracing::warn!(%error, worker = core.registration.name, "cannot renew the lease, will try again");
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

async fn beat(core: &Core, next: &mut Instant, every: Duration) -> Result<(), Error> {
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
                worker = core.registration.name,
                "declared dead while alive; what ran here is given to others, going on anew"
            );
            core.reborn(id);
        }
    }
    let wanted = core.pool.run(async |client| cancel_requests(&client, &[core.id()]).await).await?;
    core.request_cancel(wanted.into_iter().map(|(_, claim)| claim));
    forget_emptied(core).await?;
    *next = Instant::now() + every;
    Ok(())
}

/// Sweeps and prunes, whoever's turn it is, until the last ending is written.
pub(super) async fn sweep(core: &Arc<Core>, ended: &CancellationToken) {
    let (tick, gap_max) = (core.registration.lease / TICKS, core.registration.lease / GAP_PARTS);
    let mut retry_delay = RetryDelay::default();
    let mut next_prune = Instant::now();
    while !ended.is_cancelled() {
        let mut turn =
            core.pool.run(async |client| crate::sweep::sweep(&client, tick, gap_max).await).await.map(
                |swept| {
                    if !swept.dead.is_empty() || swept.released + swept.buried > 0 || swept.leases_extended {
                        tracing::info!(worker = core.registration.name, ?swept, "swept");
                    }
                },
            );
        if turn.is_ok() && Instant::now() >= next_prune {
            turn = core.pitwheel.prune_history(core.keep_history).await.map(drop);
            next_prune = Instant::now() + if turn.is_ok() { PRUNE } else { Duration::from_secs(60) };
        }
        match turn {
            Ok(()) => {
                retry_delay.reset();
                tokio::select! {
                    () = tokio::time::sleep(tick) => {}
                    () = ended.cancelled() => {}
                }
            }
            Err(error) => {
                tracing::warn!(%error, worker = core.registration.name, "cannot sweep, will try again");
                retry_delay.wait(ended).await;
            }
        }
    }
}
