//! The loops that write endings, in batches of what came together while the last one was written.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::engine::retry::RetryDelay;
use crate::engine::settle::settle;
use crate::error::Error;
use crate::job::ending::{Cause, Ending, Settlement, error_entry};
use crate::worker::core::Core;

/// How long a job waits after Postgres refused its ending.
const REFUSED_DELAY: Duration = Duration::from_secs(60);
/// How often a row that another transaction has locked is tried again.
const LOCKED_AGAIN: Duration = Duration::from_millis(100);
/// How long a worker that ends tries to settle rows that stay locked. Their jobs are released when its lease expires.
const LOCKED_MAX: Duration = Duration::from_secs(5);

/// Writes endings until their queue is closed and empty, however long the database is away. Two loops, so that one batch is
/// prepared while the other waits for its commit.
pub(super) async fn run(core: &Core) {
    let write_all = async || {
        while let Some(batch) = core.endings.next().await {
            let locked = write(core, batch).await;
            core.set_locked_aside(locked);
        }
    };
    tokio::select! {
        _ = async { tokio::join!(write_all(), write_all()) } => {}
        () = bring_locked_back(core) => {}
    }
    write_locked(core).await;
    if let Err(error) = delete_emptied(core).await {
        tracing::warn!(%error, worker = core.name(), "cannot delete empty holds; the sweep will");
    }
}

/// Puts endings whose rows were locked back into the queue, again and again.
async fn bring_locked_back(core: &Core) {
    loop {
        tokio::time::sleep(LOCKED_AGAIN).await;
        core.bring_locked_back();
    }
}

/// The last endings of a worker that ends, as long as their rows are locked.
async fn write_locked(core: &Core) {
    let locked = async {
        let mut locked = core.take_locked();
        while !locked.is_empty() {
            locked = write(core, locked).await;
            tokio::time::sleep(LOCKED_AGAIN).await;
        }
    };
    if tokio::time::timeout(LOCKED_MAX, locked).await.is_err() {
        tracing::warn!(worker = core.name(), "rows of ended jobs stay locked: the jobs will run again");
    }
}

/// Deletes the empty holds that no batch deleted.
pub(super) async fn delete_emptied(core: &Core) -> Result<(), Error> {
    let holds = core.take_emptied();
    if holds.is_empty() {
        return Ok(());
    }
    core.pool.run(async |client| settle(&*client, &[], &holds).await).await.map(drop)
}

/// Writes one batch; returns the endings whose rows are locked. A batch that Postgres refuses is bisected until the ending that
/// it refuses stands alone; that job is retried instead, so that it does not block the others.
async fn write(core: &Core, batch: Vec<Settlement>) -> Vec<Settlement> {
    let emptied = core.take_emptied();
    let mut parts = vec![batch];
    let mut locked = Vec::new();
    let mut retry_delay = RetryDelay::default();
    let never = CancellationToken::new();
    while let Some(mut part) = parts.pop() {
        let holds: &[i64] = if parts.is_empty() { &emptied } else { &[] };
        match core.pool.run(async |client| settle(&*client, &part, holds).await).await {
            Ok(results) => {
                retry_delay.reset();
                core.settled(&part, &results);
                core.hint_followers(&part, &results).await;
                let unwritten = part.into_iter().zip(results).filter(|(_, result)| result.is_none());
                locked.extend(unwritten.map(|(settlement, _)| settlement));
            }
            Err(error) if error.is_transient() || part.len() == 1 => {
                tracing::warn!(%error, worker = core.name(), jobs = part.len(), "cannot settle, will try again");
                retry_delay.wait(&never).await;
                parts.push(if error.is_transient() { part } else { refused(part, &error) });
            }
            Err(error) => {
                tracing::warn!(%error, worker = core.name(), jobs = part.len(), "Postgres refused a batch, bisecting it");
                let rest = part.split_off(part.len() / 2);
                parts.extend([part, rest]);
            }
        }
    }
    locked
}

/// The ending of a job whose own ending was refused.
fn refused(part: Vec<Settlement>, error: &Error) -> Vec<Settlement> {
    let message = format!("its ending was refused: {error}");
    let ending = Ending::Retry { delay: REFUSED_DELAY, error: error_entry(Cause::Error, &message, 0, "") };
    part.into_iter().map(|one| Settlement { claim: one.claim, ending: ending.clone() }).collect()
}
