//! Waiting for what other tasks and processes do, with a limit.

use std::cell::Cell;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// How long anything may take that has no time limit of its own, on a busy machine.
pub const WAIT_MAX: Duration = Duration::from_secs(60);
/// How often a condition is checked by a task.
const POLL: Duration = Duration::from_millis(5);
/// Checks with more time between them than this are those of a machine that stood still.
const CHECKED_WITHIN: Duration = Duration::from_millis(50);
/// How often a condition is checked by a thread. Such conditions start processes, which cost more than queries.
const BLOCKING_POLL: Duration = Duration::from_millis(20);

/// Waits until the condition holds. `what` completes the sentence "waited until" in the error.
pub async fn wait_until<F: Future<Output = Result<bool>>>(
    what: &str,
    condition: impl Fn() -> F,
) -> Result<()> {
    let begun = Instant::now();
    while !condition().await? {
        if begun.elapsed() > WAIT_MAX {
            bail!("waited {WAIT_MAX:?} in vain until {what}");
        }
        tokio::time::sleep(POLL).await; // between two checks
    }
    Ok(())
}

/// Waits until the condition holds, and returns how long that took on a machine that does not stand still: of the time between two
/// checks, at most 50 ms count.
pub async fn time_until<F: Future<Output = Result<bool>>>(
    what: &str,
    condition: impl Fn() -> F,
) -> Result<Duration> {
    let counted = Cell::new(Duration::ZERO);
    let last = Cell::new(Instant::now());
    wait_until(what, || {
        let passed = last.replace(Instant::now()).elapsed();
        counted.set(counted.get() + passed.min(CHECKED_WITHIN));
        condition()
    })
    .await?;
    Ok(counted.get())
}

/// [`wait_until`] for tests without a runtime: blocks the thread until the condition holds.
pub fn block_until(what: &str, mut condition: impl FnMut() -> bool) -> Result<()> {
    let begun = Instant::now();
    while !condition() {
        if begun.elapsed() > WAIT_MAX {
            bail!("waited {WAIT_MAX:?} in vain until {what}");
        }
        std::thread::sleep(BLOCKING_POLL); // between two checks
    }
    Ok(())
}
