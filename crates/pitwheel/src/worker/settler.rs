//! The loops that write endings, in batches of what came together while the last one was written.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use crate::engine::answer_limit::AnswerLimit;
use crate::engine::retry::RetryDelay;
use crate::engine::settle::{LOCKED_MAX, SettledBatch, settle, settle_batch, written_followers};
use crate::engine::settle_columns::SettleResult;
use crate::error::Error;
use crate::job::claim::Claim;
use crate::job::ending::{Cause, Ending, Outcome, Settlement, Verdict, decide, error_entry};
use crate::postgres::Session;
use crate::worker::core::Core;

/// How long a job waits after Postgres refused its ending.
const REFUSED_DELAY: Duration = Duration::from_secs(60);
/// How often endings that were set aside are looked at.
const LATER: Duration = Duration::from_millis(100);
/// How many endings wait for a lock, each alone, before those are written that were set aside meanwhile.
const WAIT_ALONE_MAX: usize = 4;
/// How long a settle waits for its answer at least. Waits for locks end before.
const SETTLE_LIMIT: Duration = Duration::from_secs(5);
/// How long a worker that ends tries to write the last endings. Jobs whose endings are not written, because the database is away
/// or their rows stay locked, are released when its lease expires.
const LAST_ENDINGS: Duration = Duration::from_secs(10);

/// Writes endings until their queue is closed and empty. However long the database is away, until the queue is closed.
pub(super) async fn run(core: &Core, closed: &CancellationToken) {
    let late = async {
        closed.cancelled().await;
        tokio::time::sleep(LAST_ENDINGS).await;
    };
    tokio::select! {
        () = write_all(core) => {}
        () = late => {
            tracing::warn!(worker = core.name(), "the last endings could not be written: their jobs will run again");
        }
    }
}

/// Two loops, so that one batch is prepared while the other waits for its commit.
async fn write_all(core: &Core) {
    let write_queued = async || {
        while let Some(batch) = core.endings.next().await {
            write(core, batch, |waited| core.waited().extend(waited)).await;
        }
    };
    let queue_ended = CancellationToken::new();
    let queued = async {
        tokio::join!(write_queued(), write_queued());
        queue_ended.cancel();
    };
    tokio::select! {
        _ = async { tokio::join!(queued, write_set_aside(core, &queue_ended)) } => {}
        () = bring_back(core) => {}
    }
    if let Err(error) = delete_emptied(core).await {
        tracing::warn!(%error, worker = core.name(), "cannot delete empty holds; the sweep will");
    }
}

/// Puts endings whose time has come back into the queue, again and again, as long as it is open.
async fn bring_back(core: &Core) {
    loop {
        tokio::time::sleep(LATER).await;
        let now = Instant::now();
        let due = core.later().take_due(now);
        if let Err(closed) = core.endings.push(due) {
            core.later().add(closed, now);
        }
    }
}

/// Writes the endings that waited for a lock; when the queue has ended, the others that were set aside too. Until none is left.
async fn write_set_aside(core: &Core, queue_ended: &CancellationToken) {
    let mut alone = VecDeque::new();
    loop {
        let is_last = queue_ended.is_cancelled();
        if is_last && alone.is_empty() && core.later().is_empty() && core.waited().is_empty() {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(LATER) => {}
            () = queue_ended.cancelled(), if !is_last => continue,
        }
        if is_last {
            let due = core.later().take_due(Instant::now());
            if !due.is_empty() {
                write(core, due, |waited| core.waited().extend(waited)).await;
            }
        }
        write_waited(core, &mut alone).await;
    }
}

/// Apart from new endings, which would wait with them for as long as a user's transaction is open. At first a few together, since most
/// of them are not locked; then, in turn, each `alone`.
async fn write_waited(core: &Core, alone: &mut VecDeque<Settlement>) {
    let waited = std::mem::take(&mut *core.waited());
    for part in waited.chunks(LOCKED_MAX) {
        write(core, part.to_vec(), |waited| alone.extend(waited)).await;
    }
    let mut waits = 0;
    for _ in 0..alone.len() {
        if waits == WAIT_ALONE_MAX {
            break;
        }
        let Some(one) = alone.pop_front() else { break };
        write(core, vec![one], |waited| {
            waits += waited.len();
            alone.extend(waited);
        })
        .await;
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

/// Writes one batch, however long the database is away. Sets aside what is to be written later: endings whose rows are locked or
/// damaged, and a retry in the place of each ending that Postgres refused. Endings that waited for a lock go to `keep`.
async fn write(core: &Core, batch: Vec<Settlement>, keep: impl FnOnce(Vec<Settlement>)) {
    let emptied = core.take_emptied();
    let (mut retry_delay, mut limit) = (RetryDelay::default(), AnswerLimit::new(SETTLE_LIMIT));
    let settled = loop {
        let settling = async |client: Arc<Session>| settle_batch(&*client, &batch, &emptied).await;
        match core.pool.run_within(limit.get(), settling).await {
            Ok(settled) => break settled,
            Err(error) => {
                limit.failed(limit.get());
                tracing::warn!(%error, worker = core.name(), jobs = batch.len(), "cannot settle, will try again");
                retry_delay.wait(&CancellationToken::new()).await;
            }
        }
    };
    core.settled(&batch, &settled.results);
    set_aside(core, &batch, &settled);
    keep(settled.waited.iter().map(|&at| batch[at].clone()).collect());
    core.backend().hint_followers(written_followers(&batch, &settled.results)).await;
    core.backend().hint_due(&settled.due).await;
}

fn set_aside(core: &Core, batch: &[Settlement], settled: &SettledBatch) {
    let (mut later, now) = (core.later(), Instant::now());
    for (at, (settlement, result)) in batch.iter().zip(&settled.results).enumerate() {
        let claim = settlement.claim;
        match result {
            SettleResult::Written | SettleResult::Already | SettleResult::Lost => later.ended(claim),
            SettleResult::Locked if settled.waited.contains(&at) => {}
            SettleResult::Locked => {
                let mut locked = settlement.clone();
                locked.forget_ctid();
                if settled.faults.contains(&at) {
                    later.add_refused(claim, locked, now);
                } else {
                    later.add([locked], now);
                }
            }
            SettleResult::Refused(problem) => {
                let retry = refused(core, claim, problem);
                later.add_refused(claim, retry, now);
            }
        }
    }
}

/// The ending of a job whose own ending was refused: the attempt has failed, and after the last one the job is dead.
fn refused(core: &Core, claim: Claim, problem: &str) -> Settlement {
    tracing::warn!(
        job.id = claim.id,
        worker = core.name(),
        problem,
        "an ending was refused, the attempt has failed"
    );
    let message = format!("its ending was refused: {problem}");
    let ending = match core.slots().unsettled(claim) {
        Some(context) => {
            let failed = Outcome::Verdict(Verdict::retry_after(REFUSED_DELAY, message));
            decide(failed, &core.attempt(context), 0.0)
        }
        // It was not started.
        None => {
            Ending::Retry { delay: REFUSED_DELAY, error: error_entry(Cause::Error, &message, 0, core.name()) }
        }
    };
    Settlement::new(claim, ending)
}
