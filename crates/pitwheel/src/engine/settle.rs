//! Writing the endings of attempts: fenced, in batches, together with what follows from them.

use std::collections::HashMap;

use tokio_postgres::types::{ToSql, Type};

use crate::engine::claim_columns::{ClaimColumns, claim_of_row};
use crate::engine::enqueue::{Columns, millis};
use crate::error::Error;
use crate::job::claim::Claim;
use crate::job::ending::{Ending, Settlement};
use crate::job::new_job::{History, NewJob};
use crate::postgres::{Ctid, Params, Sql};

const COMPLETE: &str = include_str!("../../sql/engine/complete.sql");
const DONE: &str = include_str!("../../sql/engine/done.sql");
pub(crate) const FINISH: &str = include_str!("../../sql/engine/finish.sql");
const PUT_BACK: &str = include_str!("../../sql/engine/put_back.sql");
#[cfg(any(feature = "sqlx", feature = "tokio-postgres"))]
pub(crate) const LOCK_CLAIM: &str = include_str!("../../sql/engine/lock_claim.sql");
const ALREADY_SETTLED: &str = include_str!("../../sql/engine/already_settled.sql");
const DROP_HOLDS: &str = include_str!("../../sql/engine/drop_holds.sql");

/// The SQLSTATE of a statement that met a locked row.
const LOCK_NOT_AVAILABLE: &str = "55P03";

/// What became of one ending of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettleResult {
    /// It was written.
    Written,
    /// The claim had ended before, by a write of its own worker: this ending is repeated, or the handler settled the job in a
    /// transaction of its own. Nothing was written now. Known from the history, for a day; otherwise it is `Lost`. A completion is
    /// `Already` only if the job was completed then.
    Already,
    /// The claim is gone: swept, claimed again, or settled before. Nothing was written.
    Lost,
    /// Another transaction has locked the row. It is not waited for, so nothing was written, and the caller must come back to it.
    Locked,
    /// Postgres refuses this ending, for this reason. Nothing was written, and the claim still holds: it can end in another way.
    Refused(String),
}

/// Writes a batch of endings, and deletes the given empty holds. Returns one result for each ending, in order. An ending that
/// Postgres refuses is found by bisection, and the others are written.
///
/// Safe to repeat after an error: what was written the first time is then `Already` or `Lost`.
pub async fn settle(
    client: &impl Sql,
    batch: &[Settlement],
    holds: &[i64],
) -> Result<Vec<SettleResult>, Error> {
    let mut results = vec![SettleResult::Lost; batch.len()];
    let mut holds = holds;
    let (order, repeated) = in_order(batch);
    let ByStatement { done, forgotten, mut finished, back } = by_statement(batch, order);
    for (statement, which) in [(DONE, done), (COMPLETE, forgotten)] {
        if !which.is_empty() {
            let completed = complete(client, statement, batch, &which, holds, &mut results).await;
            match completed {
                Ok(()) => holds = &[],
                // One of the rows is locked, or refused: finish.sql finds out which.
                Err(Error::Database(error))
                    if error.refused_with(LOCK_NOT_AVAILABLE) || error.refuses_values() => {}
                Err(error) => return Err(error),
            }
        }
        // The row has moved since the claim (progress, or a cancel request), it is locked, or the claim is lost.
        finished.extend(which.iter().filter(|&&at| results[at] != SettleResult::Written));
    }
    if !back.is_empty() {
        write_each(client, Statement::PutBack, batch, &back, &mut results).await?;
        // A cancel was requested, the row is locked, or the claim is lost.
        finished.extend(back.iter().filter(|&&at| results[at] == SettleResult::Lost));
    }
    if !finished.is_empty() {
        finished.sort_unstable_by_key(|&at| batch[at].claim.id);
        write_each(client, Statement::Finish(std::mem::take(&mut holds)), batch, &finished, &mut results)
            .await?;
    }
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
    Ok(results)
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
                let Settlement { claim, ending } = &batch[at];
                if done.get(claim).is_some_and(|done| *done || !ending.is_done()) {
                    results[at] = SettleResult::Already;
                }
            }
        }
        Err(error) => tracing::debug!(%error, "cannot read whether lost claims were settled before"),
    }
}

/// The positions of endings, by the statement that writes them.
#[derive(Default)]
struct ByStatement {
    done: Vec<usize>,
    forgotten: Vec<usize>,
    finished: Vec<usize>,
    back: Vec<usize>,
}

fn by_statement(batch: &[Settlement], order: Vec<usize>) -> ByStatement {
    let mut sorted = ByStatement::default();
    for at in order {
        let Settlement { claim, ending } = &batch[at];
        let which = match ending {
            // The statements for these compare the holder, so it must be known.
            Ending::Done { ctid: Some(_), result: None, then, history }
                if then.is_empty() && claim.holder != 0 =>
            {
                match history {
                    History::All => &mut sorted.done,
                    History::FailuresOnly => &mut sorted.forgotten,
                }
            }
            Ending::Done { .. } | Ending::Dead { .. } | Ending::Cancelled { .. } => &mut sorted.finished,
            Ending::Retry { .. } | Ending::Snooze { .. } | Ending::Release | Ending::Crash { .. } => {
                &mut sorted.back
            }
        };
        which.push(at);
    }
    sorted
}

/// A statement whose rows can be refused one by one.
#[derive(Clone, Copy)]
enum Statement<'a> {
    PutBack,
    /// With holds that were emptied.
    Finish(&'a [i64]),
}

/// Writes endings together. If Postgres refuses them, bisects them until the one that it refuses stands alone.
async fn write_each(
    client: &impl Sql,
    statement: Statement<'_>,
    batch: &[Settlement],
    which: &[usize],
    results: &mut [SettleResult],
) -> Result<(), Error> {
    let mut parts = vec![which];
    while let Some(part) = parts.pop() {
        let written = match statement {
            Statement::PutBack => put_back(client, batch, part, results).await,
            Statement::Finish(emptied) => finish(client, batch, part, emptied, results).await,
        };
        match (written, part) {
            (Ok(()), _) => {}
            (Err(Error::Database(error)), [only]) if error.refuses_values() => {
                results[*only] = SettleResult::Refused(error.to_string());
            }
            (Err(Error::Database(error)), _) if error.refuses_values() => {
                let (first, rest) = part.split_at(part.len() / 2);
                parts.extend([rest, first]);
            }
            (Err(error), _) => return Err(error),
        }
    }
    Ok(())
}

/// The positions of the endings, sorted by id: batches that lock rows in one order cannot deadlock. Of several endings of one
/// claim only the first, because a report that was repeated before its answer came may be in one batch with itself; each of the
/// others is returned with that first one.
fn in_order(batch: &[Settlement]) -> (Vec<usize>, Vec<(usize, usize)>) {
    let claim = |at: usize| batch[at].claim;
    let mut order: Vec<usize> = (0..batch.len()).collect();
    order.sort_by_key(|&at| (claim(at).id, claim(at).fence, claim(at).holder));
    let mut repeated = Vec::new();
    order.dedup_by(|next, first| {
        let is_repeated = claim(*first).is_of(claim(*next));
        if is_repeated {
            repeated.push((*next, *first));
        }
        is_repeated
    });
    (order, repeated)
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
    let ctids: Vec<Option<Ctid>> = which
        .iter()
        .map(|&at| match batch[at].ending {
            Ending::Done { ctid, .. } => ctid,
            _ => None,
        })
        .collect();
    let params: Params = &[
        (&claims.ids, Type::INT8_ARRAY),
        (&claims.fences, Type::INT8_ARRAY),
        (&claims.holders, Type::INT8_ARRAY),
        (&ctids, Type::TID_ARRAY),
        (&emptied, Type::INT8_ARRAY),
    ];
    mark(&client.rows(statement, params).await?, batch, which, results);
    Ok(())
}

/// The parameters of finish.sql, as columns.
#[derive(Default)]
pub(crate) struct Finish<'a> {
    pub(crate) claims: ClaimColumns,
    pub(crate) states: Vec<Option<&'static str>>,
    pub(crate) errors: Vec<Option<&'a str>>,
    pub(crate) results: Vec<Option<&'a str>>,
    pub(crate) emptied: &'a [i64],
    /// The claim whose job each follower follows.
    pub(crate) followed: ClaimColumns,
    pub(crate) followers: Columns<'a>,
    /// The ending lets the job wait again, and finishes it only if a cancel was requested.
    pub(crate) if_cancelled: Vec<bool>,
}

impl<'a> Finish<'a> {
    pub(crate) fn push(&mut self, claim: Claim, ending: &'a Ending) {
        let (state, error, result) = match ending {
            Ending::Done { history, result, .. } => {
                let state = if result.is_some() || *history == History::All { Some("done") } else { None };
                (state, None, result.as_deref())
            }
            Ending::Dead { error, .. } => (Some("dead"), Some(error), None),
            Ending::Cancelled { error, .. } => (Some("cancelled"), error.as_ref(), None),
            // It was not put back, because a cancel was requested.
            Ending::Retry { error, .. } | Ending::Crash { error } => (Some("cancelled"), Some(error), None),
            Ending::Snooze { .. } | Ending::Release => (Some("cancelled"), None, None),
        };
        self.claims.push(claim);
        self.states.push(state);
        self.errors.push(error.map(String::as_str));
        self.results.push(result);
        self.if_cancelled
            .push(!matches!(ending, Ending::Done { .. } | Ending::Dead { .. } | Ending::Cancelled { .. }));
        for follower in ending.then() {
            self.followed.push(claim);
            self.followers.push(follower);
        }
    }

    /// The parameters in the order of the statement, each with its type.
    pub(crate) fn params(&self) -> [(&(dyn ToSql + Sync), Type); 21] {
        let followers = &self.followers;
        [
            (&self.claims.ids, Type::INT8_ARRAY),
            (&self.claims.fences, Type::INT8_ARRAY),
            (&self.states, Type::TEXT_ARRAY),
            (&self.errors, Type::TEXT_ARRAY),
            (&self.results, Type::TEXT_ARRAY),
            (&self.emptied, Type::INT8_ARRAY),
            (&self.followed.ids, Type::INT8_ARRAY),
            (&self.followed.fences, Type::INT8_ARRAY),
            (&followers.kinds, Type::TEXT_ARRAY),
            (&followers.payloads, Type::TEXT_ARRAY),
            (&followers.queues, Type::TEXT_ARRAY),
            (&followers.delays_ms, Type::INT8_ARRAY),
            (&followers.run_ats_us, Type::INT8_ARRAY),
            (&followers.priorities, Type::INT2_ARRAY),
            (&followers.max_attempts, Type::INT4_ARRAY),
            (&followers.timeouts_ms, Type::INT8_ARRAY),
            (&followers.metadata, Type::TEXT_ARRAY),
            (&followers.keys, Type::TEXT_ARRAY),
            (&self.if_cancelled, Type::BOOL_ARRAY),
            (&self.claims.holders, Type::INT8_ARRAY),
            (&self.followed.holders, Type::INT8_ARRAY),
        ]
    }
}

async fn finish(
    client: &impl Sql,
    batch: &[Settlement],
    which: &[usize],
    emptied: &[i64],
    results: &mut [SettleResult],
) -> Result<(), Error> {
    let mut columns = Finish { emptied, ..Finish::default() };
    which.iter().for_each(|&at| columns.push(batch[at].claim, &batch[at].ending));
    mark(&client.rows(FINISH, &columns.params()).await?, batch, which, results);
    Ok(())
}

async fn put_back(
    client: &impl Sql,
    batch: &[Settlement],
    which: &[usize],
    results: &mut [SettleResult],
) -> Result<(), Error> {
    let claims = ClaimColumns::new(which.iter().map(|&at| batch[at].claim));
    let mut delays = Vec::with_capacity(which.len());
    let mut uncharged = Vec::with_capacity(which.len());
    let mut crashed = Vec::with_capacity(which.len());
    let mut errors = Vec::with_capacity(which.len());
    for &at in which {
        let (delay, error) = match &batch[at].ending {
            Ending::Retry { delay, error } => (millis(*delay), Some(error)),
            Ending::Snooze { delay } => (millis(*delay), None),
            Ending::Crash { error } => (0, Some(error)),
            _ => (0, None),
        };
        delays.push(delay);
        uncharged.push(!matches!(batch[at].ending, Ending::Retry { .. }));
        crashed.push(matches!(batch[at].ending, Ending::Crash { .. }));
        errors.push(error);
    }
    let params: Params = &[
        (&claims.ids, Type::INT8_ARRAY),
        (&claims.fences, Type::INT8_ARRAY),
        (&claims.holders, Type::INT8_ARRAY),
        (&delays, Type::INT8_ARRAY),
        (&uncharged, Type::BOOL_ARRAY),
        (&crashed, Type::BOOL_ARRAY),
        (&errors, Type::TEXT_ARRAY),
    ];
    mark(&client.rows(PUT_BACK, params).await?, batch, which, results);
    Ok(())
}

/// Marks the claims that the statement returned as written, or as locked. `which` is sorted by id, so each is found by bisection. Fence and
/// holder tell claims of one job apart: a late holder's ending may be in one batch with that of the next holder.
fn mark(rows: &[tokio_postgres::Row], batch: &[Settlement], which: &[usize], results: &mut [SettleResult]) {
    for row in rows {
        let claim = claim_of_row(row);
        let first = which.partition_point(|&at| batch[at].claim.id < claim.id);
        let same_job = which[first..].iter().take_while(|&&at| batch[at].claim.id == claim.id);
        if let Some(&at) = same_job.into_iter().find(|&&at| batch[at].claim.is_of(claim)) {
            let is_written: bool = row.get(3);
            results[at] = if is_written { SettleResult::Written } else { SettleResult::Locked };
        }
    }
}
