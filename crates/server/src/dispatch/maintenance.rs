//! Sweeps and prunes.

use std::time::{Duration, Instant};

use pitwheel::Pitwheel;
use pitwheel::engine::{Pool, sweep};
use tokio_util::sync::CancellationToken;

/// Sweeps per lease.
const SWEEPS_PER_LEASE: u32 = 20;
/// If no process swept for this part of a lease, workers could not renew their leases either: the sweep extends leases
/// then instead of ending them.
const GAP_PART: u32 = 4;
/// Time between two prunes.
const PRUNE_EVERY: Duration = Duration::from_secs(3600);
/// Time to the next prune after one that failed.
const PRUNE_RETRY: Duration = Duration::from_secs(60);

/// Declares workers dead whose lease expired, gives back the jobs they held, and drops old history, until `stop`.
pub(crate) async fn maintain(
    pitwheel: &Pitwheel,
    pool: &Pool,
    name: &str,
    lease: Duration,
    keep_history: Duration,
    stop: &CancellationToken,
) {
    let (tick, gap_max) = (lease / SWEEPS_PER_LEASE, lease / GAP_PART);
    let mut next_prune = Instant::now();
    while !stop.is_cancelled() {
        match pool.run(async |client| sweep(&client, tick, gap_max).await).await {
            Ok(swept)
                if !swept.dead.is_empty() || swept.released + swept.buried > 0 || swept.leases_extended =>
            {
                tracing::info!(node = name, ?swept, "swept");
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, node = name, "cannot sweep, will retry"),
        }
        if Instant::now() >= next_prune {
            let pruned = pitwheel.prune_history(keep_history).await;
            next_prune = Instant::now() + if pruned.is_ok() { PRUNE_EVERY } else { PRUNE_RETRY };
        }
        tokio::select! {
            () = tokio::time::sleep(tick) => {}
            () = stop.cancelled() => {}
        }
    }
}
