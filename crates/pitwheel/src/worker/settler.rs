//! The loops that write endings, in batches of what came together while the last one was written.

use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use crate::engine::retry::RetryDelay;
use crate::engine::settle::{settle, settle_with_due, written_followers};
use crate::engine::settle_columns::SettleResult;
use crate::error::Error;
use crate::job::claim::Claim;
use crate::job::ending::{Cause, Ending, Outcome, Settlement, Verdict, decide, error_entry};
use crate::worker::core::Core;

/// How long a job waits after Postgres refused its ending.
const REFUSED_DELAY: Duration = Duration::from_secs(60);
/// How often endings that were set aside are looked at.
const LATER: Duration = Duration::from_millis(100);
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
            write(core, batch).await;
        }
    };
    tokio::select! {
        _ = async { tokio::join!(write_queued(), write_queued()) } => {}
        () = bring_back(core) => {}
    }
    write_set_aside(core).await;
    if let Err(error) = delete_emptied(core).await {
        tracing::warn!(%error, worker = core.name(), "cannot delete empty holds; the sweep will");
    }
}

/// Puts endings that were set aside back into the queue, again and again.
async fn bring_back(core: &Core) {
    loop {
        tokio::time::sleep(LATER).await;
        core.bring_back();
    }
}

/// Writes what was set aside when the worker ends.
async fn write_set_aside(core: &Core) {
    while !core.later().is_empty() {
        let due = core.later().take_due(Instant::now());
        if !due.is_empty() {
            write(core, due).await;
        }
        tokio::time::sleep(LATER).await;
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

/// Writes one batch, however long the database is away. Sets aside what is to be written later: endings whose rows are locked, and
/// a retry in the place of each ending that Postgres refused.
async fn write(core: &Core, batch: Vec<Settlement>) {
    let emptied = core.take_emptied();
    let mut retry_delay = RetryDelay::default();
    let (results, due) = loop {
        match core.pool.run(async |client| settle_with_due(&*client, &batch, &emptied).await).await {
            Ok(settled) => break settled,
            Err(error) => {
                tracing::warn!(%error, worker = core.name(), jobs = batch.len(), "cannot settle, will try again");
                retry_delay.wait(&CancellationToken::new()).await;
            }
        }
    };
    core.settled(&batch, &results);
    set_aside(core, &batch, &results);
    core.backend().hint_followers(written_followers(&batch, &results)).await;
    core.backend().hint_due(&due).await;
}

fn set_aside(core: &Core, batch: &[Settlement], results: &[SettleResult]) {
    let (mut later, now) = (core.later(), Instant::now());
    for (settlement, result) in batch.iter().zip(results) {
        let claim = settlement.claim;
        match result {
            SettleResult::Written | SettleResult::Already | SettleResult::Lost => later.ended(claim),
            SettleResult::Locked => later.add([settlement.clone()], now),
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
