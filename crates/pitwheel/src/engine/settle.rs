//! Writing the endings of attempts: fenced, in batches, together with what follows from them.

use std::collections::{BTreeSet, HashMap};
use std::iter::once;

use tokio_postgres::types::Type;

use crate::engine::claim_columns::{ClaimColumns, claim_of_row};
use crate::engine::lanes::promote_lanes;
use crate::engine::lease::write_last_progress;
use crate::engine::settle_columns::{Finish, PutBack, SettleResult, mark, mark_written};
use crate::engine::settle_order::{ByStatement, by_statement, in_order};
use crate::engine::settle_runs::{complete_runs, finish_runs, put_back_runs};
use crate::error::Error;
use crate::job::claim::Claim;
use crate::job::ending::Settlement;
use crate::job::limits::SETTLE_MAX;
use crate::job::new_job::NewJob;
use crate::metrics;
use crate::postgres::{Ctid, Params, Sql};

const COMPLETE: &str = include_str!("../../sql/engine/complete.sql");
const DONE: &str = include_str!("../../sql/engine/done.sql");
pub(crate) const FINISH: &str = include_str!("../../sql/engine/finish.sql");
const DONE_IN_LANES: &str = include_str!("../../sql/engine/done_in_lanes.sql");
const PUT_BACK: &str = include_str!("../../sql/engine/put_back.sql");
#[cfg(any(feature = "sqlx", feature = "tokio-postgres"))]
pub(crate) const LOCK_CLAIM: &str = include_str!("../../sql/engine/lock_claim.sql");
const ALREADY_SETTLED: &str = include_str!("../../sql/engine/already_settled.sql");
pub(crate) const DROP_HOLDS: &str = include_str!("../../sql/engine/drop_holds.sql");

/// Runs per statement, but for the fast path: with more, a plan that was made for an empty table would compare every run with every
/// other for too long.
const RUNS_MAX: usize = 100;

/// Waits for a lock after which a part of a batch is not split any more.
const WAITS_MAX: usize = 4;
/// Endings per statement when those that may be locked are tried again: one that waits is found among them within these waits.
pub(crate) const LOCKED_MAX: usize = 1 << WAITS_MAX;
/// Waits after which the rest of a batch is left for later. With 200 ms for each, a settle stays below the limit of a statement.
const WAITS_IN_ALL: usize = 10;

/// Writes a batch of endings, and deletes the given empty holds. Returns one result for each ending, in order. An ending that
/// Postgres refuses is found by bisection, and the others are written.
///
/// Safe to repeat after an error: what was written the first time is then `Already` or `Lost`.
pub async fn settle(
    client: &impl Sql,
    batch: &[Settlement],
    holds: &[i64],
) -> Result<Vec<SettleResult>, Error> {
    settle_with_due(client, batch, holds).await.map(|(results, _)| results)
}

/// Like [`settle`]. Also returns the queues in which pipelines have new jobs that are due.
pub async fn settle_with_due(
    client: &impl Sql,
    batch: &[Settlement],
    holds: &[i64],
) -> Result<(Vec<SettleResult>, BTreeSet<String>), Error> {
    settle_batch(client, batch, holds).await.map(|settled| (settled.results, settled.due))
}

/// What became of a batch.
pub(crate) struct SettledBatch {
    /// One for each ending, in order.
    pub(crate) results: Vec<SettleResult>,
    /// The queues in which pipelines have new jobs that are due.
    pub(crate) due: BTreeSet<String>,
    /// Of those that are locked, the positions of those that waited. One of some that waited together is locked; a row that is passed over
    /// because it is locked has not waited.
    pub(crate) waited: BTreeSet<usize>,
    /// Of those that are locked, the positions of those that the server cannot read or write, through a fault of its own.
    pub(crate) faults: BTreeSet<usize>,
}

/// Like [`settle`].
pub(crate) async fn settle_batch(
    client: &impl Sql,
    batch: &[Settlement],
    holds: &[i64],
) -> Result<SettledBatch, Error> {
    // On the heap: the loops of a worker are one future, which would have room for this at each place that writes a batch.
    Box::pin(write_batch(client, batch, holds)).await
}

async fn write_batch(client: &impl Sql, batch: &[Settlement], holds: &[i64]) -> Result<SettledBatch, Error> {
    match write_last_progress(client, batch).await {
        // The endings are worth more.
        Err(Error::Database(error)) if error.concerns_rows() => {
            tracing::warn!(%error, "the last progress of jobs is not written");
        }
        written => written?,
    }
    let mut notes = Notes::default();
    let mut results = vec![SettleResult::Lost; batch.len()];
    let mut holds = holds;
    let (order, repeated) = in_order(batch);
    let ByStatement { done, forgotten, in_lanes, mut finished, back, done_runs, mut runs } =
        by_statement(batch, order);
    for (statement, which) in [(DONE, done), (COMPLETE, forgotten), (DONE_IN_LANES, in_lanes)] {
        if !which.is_empty() {
            let completed = complete(client, statement, batch, &which, holds, &mut results).await;
            // One of the rows is locked, or refused: finish.sql finds out which.
            if was_executed(completed)? {
                holds = &[];
            }
        }
        // The row has moved since the claim (progress, or a cancel request), it is locked, or the claim is lost.
        finished.extend(which.iter().filter(|&&at| results[at] != SettleResult::Written));
    }
    if !back.is_empty() {
        let all = once(&back[..]);
        write_each(client, Statement::PutBack, batch, all, &mut results, &mut notes).await?;
        // A cancel was requested, the row is locked, or the claim is lost.
        finished.extend(back.iter().filter(|&&at| results[at] == SettleResult::Lost));
    }
    if !finished.is_empty() {
        finished.sort_unstable_by_key(|&at| batch[at].claim.id);
        let finish = Statement::Finish(std::mem::take(&mut holds));
        write_each(client, finish, batch, once(&finished[..]), &mut results, &mut notes).await?;
        // The row or its pipeline is locked, or it is a run of a recurring job that has no plan.
        let is_locked = |at: &usize| results[*at] == SettleResult::Locked && !notes.faults.contains(at);
        runs.extend(finished.iter().copied().filter(is_locked));
    }
    if !done_runs.is_empty() {
        let completed = complete_runs(client, batch, &done_runs, holds, &mut results).await;
        if was_executed(completed)? {
            holds = &[];
        }
        runs.extend(done_runs.iter().filter(|&&at| results[at] != SettleResult::Written));
    }
    if !runs.is_empty() {
        runs.sort_unstable_by_key(|&at| batch[at].claim.id);
        settle_runs(client, batch, &runs, &mut results, &mut notes).await?;
    }
    // Most pipelines that were locked, by the settle of another step, are free again by now. And of the endings that waited together, most
    // are not locked.
    let locked = |at: &usize| results[*at] == SettleResult::Locked && !notes.faults.contains(at);
    let locked = finished.into_iter().filter(locked);
    let (waited, passed_over): (Vec<usize>, Vec<usize>) = locked.partition(|at| notes.waited.contains(at));
    let parts = passed_over.chunks(SETTLE_MAX).chain(waited.chunks(LOCKED_MAX));
    write_each(client, Statement::Finish(&[]), batch, parts, &mut results, &mut notes).await?;
    if !holds.is_empty() {
        client.rows(DROP_HOLDS, &[(&holds, Type::INT8_ARRAY)]).await?;
    }
    find_already_settled(client, batch, &mut results).await;
    for (again, first) in repeated {
        let is_settled = batch[first].ending.is_done() || !batch[again].ending.is_done();
        results[again] = match &results[first] {
            SettleResult::Written if is_settled => SettleResult::Already,
            SettleResult::Written => SettleResult::Lost,
            unwritten => unwritten.clone(),
        };
    }
    let (mut waited, faults) = (std::mem::take(&mut notes.waited), std::mem::take(&mut notes.faults));
    waited.retain(|&at| results[at] == SettleResult::Locked);
    Ok(SettledBatch { results, due: notes.promote(client).await, waited, faults })
}

/// What is found beside the results.
#[derive(Default)]
struct Notes {
    /// The queues in which they have new jobs that are due.
    due: BTreeSet<String>,
    /// The lanes that their new jobs entered.
    lanes: BTreeSet<String>,
    /// The endings that waited for a lock, each alone or together with others.
    waited: BTreeSet<usize>,
    /// The endings that the server cannot write, through a fault of its own.
    faults: BTreeSet<usize>,
}

impl Notes {
    /// Promotes the lanes. Returns the queues in which something is due. What cannot be promoted now is left to the maintenance: an
    /// error would hide that the endings were written.
    async fn promote(mut self, client: &impl Sql) -> BTreeSet<String> {
        let lanes: Vec<&str> = self.lanes.iter().map(String::as_str).collect();
        match promote_lanes(client, &lanes).await {
            Ok(queues) => self.due.extend(queues),
            Err(error) => tracing::debug!(%error, "cannot promote the lanes of steps, a node will"),
        }
        self.due
    }
}

/// Tells lost claims apart that have ended in the history by a write of their own worker. If that cannot be read, they stay lost:
/// an error would hide that the others were written.
async fn find_already_settled(client: &impl Sql, batch: &[Settlement], results: &mut [SettleResult]) {
    let lost: Vec<usize> = (0..batch.len()).filter(|&at| results[at] == SettleResult::Lost).collect();
    if lost.is_empty() {
        return;
    }
    let claims = ClaimColumns::new(lost.iter().map(|&at| batch[at].claim));
    let params: Params = &[
        (&claims.ids, Type::INT8_ARRAY),
        (&claims.fences, Type::INT8_ARRAY),
        (&claims.holders, Type::INT8_ARRAY),
    ];
    match client.rows(ALREADY_SETTLED, params).await {
        Ok(rows) => {
            let done: HashMap<Claim, bool> = rows.iter().map(|row| (claim_of_row(row), row.get(3))).collect();
            for at in lost {
                let Settlement { claim, ending, .. } = &batch[at];
                if done.get(claim).is_some_and(|done| *done || !ending.is_done()) {
                    results[at] = SettleResult::Already;
                }
            }
        }
        Err(error) => tracing::debug!(%error, "cannot read whether lost claims were settled before"),
    }
}

/// Whether the statement was executed. False: it met a row that has to wait, or that Postgres refuses.
fn was_executed(executed: Result<(), Error>) -> Result<bool, Error> {
    match executed {
        Ok(()) => Ok(true),
        Err(Error::Database(error)) if error.concerns_rows() => Ok(false),
        Err(error) => Err(error),
    }
}

/// A statement whose rows can be refused one by one.
#[derive(Clone, Copy)]
enum Statement<'a> {
    PutBack,
    /// With holds that were emptied.
    Finish(&'a [i64]),
    PutBackRuns,
    FinishRuns,
}

/// Writes the endings of runs of recurring jobs. What is no run stays as it was marked.
async fn settle_runs(
    client: &impl Sql,
    batch: &[Settlement],
    runs: &[usize],
    results: &mut [SettleResult],
    notes: &mut Notes,
) -> Result<(), Error> {
    let back: Vec<usize> = runs.iter().copied().filter(|&at| batch[at].ending.waits_again()).collect();
    write_each(client, Statement::PutBackRuns, batch, back.chunks(RUNS_MAX), results, notes).await?;
    // Of those that should wait, what is left has a cancel request, a recurring job that was disabled or deleted, or a locked row.
    let left = |at: &usize| matches!(results[*at], SettleResult::Lost | SettleResult::Locked);
    let left: Vec<usize> = runs.iter().copied().filter(left).collect();
    write_each(client, Statement::FinishRuns, batch, left.chunks(RUNS_MAX), results, notes).await
}

/// Writes the endings of each part together. If Postgres refuses them, bisects them until the one that it refuses stands alone. Likewise if
/// one of them waits for another transaction, as a follower does with a key that is enqueued there, or if one cannot be read. If a whole
/// table is locked, every part waits: after some waits a part is not split any more, then not tried any more, and its worker comes back.
async fn write_each<'a>(
    client: &impl Sql,
    statement: Statement<'_>,
    batch: &[Settlement],
    parts: impl DoubleEndedIterator<Item = &'a [usize]>,
    results: &mut [SettleResult],
    notes: &mut Notes,
) -> Result<(), Error> {
    let (mut parts, mut waits): (Vec<&[usize]>, usize) = (parts.rev().collect(), 0);
    while let Some(part) = parts.pop() {
        if waits == WAITS_IN_ALL {
            part.iter().for_each(|&at| results[at] = SettleResult::Locked);
            notes.waited.extend(part);
            continue;
        }
        let written = match statement {
            Statement::PutBack => put_back(client, batch, part, results).await,
            Statement::Finish(emptied) => finish(client, batch, part, emptied, results, notes).await,
            Statement::PutBackRuns => put_back_runs(client, batch, part, results).await,
            Statement::FinishRuns => finish_runs(client, batch, part, results).await,
        };
        match (written, part) {
            (Ok(()), _) => {}
            (Err(Error::Database(error)), [only]) if error.refuses_values() => {
                results[*only] = SettleResult::Refused(error.to_string());
            }
            (Err(Error::Database(error)), [only]) if error.is_fault_of_server() => {
                tracing::warn!(job.id = batch[*only].claim.id, %error, "cannot settle a job, will try again");
                metrics::failed(&Error::Database(error));
                results[*only] = SettleResult::Locked;
                notes.faults.insert(*only);
            }
            (Err(Error::Database(error)), _) if error.concerns_rows() => {
                waits += usize::from(error.is_locked());
                if part.len() == 1 || (error.is_locked() && waits > WAITS_MAX) {
                    part.iter().for_each(|&at| results[at] = SettleResult::Locked);
                    notes.waited.extend(part);
                } else {
                    let (first, rest) = part.split_at(part.len() / 2);
                    parts.extend([rest, first]);
                }
            }
            (Err(error), _) => return Err(error),
        }
    }
    Ok(())
}

/// The followers that exist now, because the endings that they follow from were written.
pub fn written_followers<'a>(
    batch: &'a [Settlement],
    results: &'a [SettleResult],
) -> impl Iterator<Item = &'a NewJob> {
    let written = batch.iter().zip(results).filter(|(_, result)| **result == SettleResult::Written);
    written.flat_map(|(settlement, _)| settlement.ending.then())
}

/// Completes jobs whose rows are where they were when they were claimed.
async fn complete(
    client: &impl Sql,
    statement: &str,
    batch: &[Settlement],
    which: &[usize],
    emptied: &[i64],
    results: &mut [SettleResult],
) -> Result<(), Error> {
    let claims = ClaimColumns::new(which.iter().map(|&at| batch[at].claim));
    let ctids: Vec<Option<Ctid>> = which.iter().map(|&at| batch[at].ending.ctid()).collect();
    let kept: Vec<bool> = which.iter().map(|&at| batch[at].ending.keeps_history()).collect();
    let params: Params = &[
        (&claims.ids, Type::INT8_ARRAY),
        (&claims.fences, Type::INT8_ARRAY),
        (&claims.holders, Type::INT8_ARRAY),
        (&ctids, Type::TID_ARRAY),
        (&emptied, Type::INT8_ARRAY),
        (&kept, Type::BOOL_ARRAY),
    ];
    let params = if statement == DONE_IN_LANES { params } else { &params[..5] };
    mark_written(&client.rows(statement, params).await?, batch, which, results);
    Ok(())
}

async fn finish(
    client: &impl Sql,
    batch: &[Settlement],
    which: &[usize],
    emptied: &[i64],
    results: &mut [SettleResult],
    notes: &mut Notes,
) -> Result<(), Error> {
    let mut columns = Finish { emptied, ..Finish::default() };
    which.iter().for_each(|&at| columns.push(batch[at].claim, &batch[at].ending));
    let rows = client.rows(FINISH, &columns.all_params()).await?;
    mark(&rows, batch, which, results);
    let all = |column: usize| {
        rows.iter().filter_map(move |row| row.get::<_, Option<Vec<String>>>(column)).flatten()
    };
    notes.due.extend(all(4));
    notes.lanes.extend(all(5));
    Ok(())
}

async fn put_back(
    client: &impl Sql,
    batch: &[Settlement],
    which: &[usize],
    results: &mut [SettleResult],
) -> Result<(), Error> {
    let mut columns = PutBack::default();
    which.iter().for_each(|&at| columns.push(batch[at].claim, &batch[at].ending));
    mark(&client.rows(PUT_BACK, &columns.params()).await?, batch, which, results);
    Ok(())
}
