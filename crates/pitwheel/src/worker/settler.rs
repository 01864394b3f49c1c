//! The loop that writes endings, in batches as large as what came together while the last one was written.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::core::Core;
use crate::claimer::RetryDelay;
use crate::error::Error;
use crate::settle::{Settlement, settle};

/// Endings per statement.
const BATCH_MAX: usize = 1000;
/// A batch smaller than this waits a moment for others, so that a burst costs few transactions.
const BATCH_FAIR: usize = 500;
const LINGER: Duration = Duration::from_millis(1);

/// Endings that wait to be written. Bounded by the worker's slots: a slot is free only after its ending was written.
#[derive(Default)]
pub(super) struct SettleQueue {
    waiting: Mutex<Vec<Settlement>>,
    arrived: Notify,
    closed: CancellationToken,
}

impl SettleQueue {
    pub(super) fn push(&self, settlement: Settlement) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push(settlement);
        let wake = waiting.len() == 1 || waiting.len() == BATCH_FAIR;
        drop(waiting);
        if wake {
            self.arrived.notify_one();
        }
    }

    pub(super) fn push_all(&self, settlements: Vec<Settlement>) {
        settlements.into_iter().for_each(|settlement| self.push(settlement));
    }

    /// Nothing more will be pushed.
    pub(super) fn close(&self) {
        self.closed.cancel();
    }

    fn len(&self) -> usize {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// The next batch; `None` when the queue is closed and empty.
    async fn next(&self) -> Option<Vec<Settlement>> {
        while self.len() == 0 {
            tokio::select! {
                () = self.arrived.notified() => {}
                () = self.closed.cancelled() => break,
            }
        }
        if self.len() < BATCH_FAIR && !self.closed.is_cancelled() {
            tokio::select! {
                () = tokio::time::sleep(LINGER) => {}
                () = self.arrived.notified() => {}
            }
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let take = waiting.len().min(BATCH_MAX);
        let batch: Vec<Settlement> = waiting.drain(..take).collect();
        (!batch.is_empty()).then_some(batch)
    }
}

/// Writes endings until the queue is closed and empty, however long the database is away. Two loops, so that one batch is
/// prepared while the other waits for its commit.
pub(super) async fn run(core: &Core) {
    let write_all = async || {
        while let Some(batch) = core.settle_queue.next().await {
            write(core, batch).await;
        }
    };
    tokio::join!(write_all(), write_all());
    if let Err(error) = forget_emptied(core).await {
        tracing::warn!(%error, worker = core.registration.name, "cannot forget empty holds; the sweep will");
    }
}

/// Forgets the holds that no batch came by to forget.
pub(super) async fn forget_emptied(core: &Core) -> Result<(), Error> {
    let holds = core.take_emptied();
    if holds.is_empty() {
        return Ok(());
    }
    core.pool.run(async |client| settle(&*client, &[], &holds).await).await.map(drop)
}

/// Writes one batch. A batch that Postgres refuses is halved until the ending that it refuses stands alone; that one is
/// released instead, so that it cannot hold up the others.
async fn write(core: &Core, batch: Vec<Settlement>) {
    let emptied = core.take_emptied();
    let mut parts = vec![batch];
    let mut retry_delay = RetryDelay::default();
    let never = CancellationToken::new();
    while let Some(part) = parts.pop() {
        let holds: &[i64] = if parts.is_empty() { &emptied } else { &[] };
        match core.pool.run(async |client| settle(&*client, &part, holds).await).await {
            Ok(settled) => {
                retry_delay.reset();
                core.settled(&part, &settled);
            }
            Err(error) if error.is_transient() || part.len() == 1 => {
                tracing::warn!(%error, worker = core.registration.name, jobs = part.len(), "cannot settle, will try again");
                retry_delay.wait(&never).await;
                parts.push(if error.is_transient() { part } else { released(part, &error) });
            }
            Err(error) => {
                tracing::warn!(%error, worker = core.registration.name, jobs = part.len(), "a batch was refused, halving it");
                let mut part = part;
                let rest = part.split_off(part.len() / 2);
                parts.extend([part, rest]);
            }
        }
    }
}

fn released(part: Vec<Settlement>, error: &Error) -> Vec<Settlement> {
    use crate::settle::{Cause, Ending, error_entry};
    let ending = |_| Ending::Back {
        delay: Duration::from_secs(60),
        uncharged: false,
        crashed: false,
        error: Some(error_entry(Cause::Error, &format!("its ending was refused: {error}"), 0, "")),
    };
    part.into_iter().map(|one| Settlement { claim: one.claim, ending: ending(()) }).collect()
}
