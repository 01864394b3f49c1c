//! Ending an attempt: fenced, in batches.

use tokio_postgres::types::Type;

use crate::engine::enqueue::millis;
use crate::error::Error;
use crate::job::claim::{Claim, Settled};
use crate::job::ending::{Ending, Settlement};
use crate::job::new_job::History;
use crate::postgres::{Ctid, Params, Sql};

const COMPLETE: &str = include_str!("../../sql/engine/complete.sql");
const DONE: &str = include_str!("../../sql/engine/done.sql");
pub(crate) const FINISH: &str = include_str!("../../sql/engine/finish.sql");
const PUT_BACK: &str = include_str!("../../sql/engine/put_back.sql");
const DROP_HOLDS: &str = include_str!("../../sql/engine/drop_holds.sql");

/// Writes a batch of endings, and forgets the holds that are empty with them. One answer for each, in order.
///
/// Repeating it after an error is safe: what was written the first time is then `Lost`.
pub async fn settle(client: &impl Sql, batch: &[Settlement], holds: &[i64]) -> Result<Vec<Settled>, Error> {
    // Sorted by id: batches that lock rows in one order cannot deadlock.
    let mut order: Vec<usize> = (0..batch.len()).collect();
    order.sort_unstable_by_key(|&at| batch[at].claim.id);
    let mut written = vec![Settled::Lost; batch.len()];
    let mut holds = holds;
    let (mut done, mut forgotten, mut finished, mut back) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for at in order {
        match batch[at].ending {
            Ending::Done { ctid: None, .. } | Ending::Finished { .. } => finished.push(at),
            Ending::Done { history: History::All, .. } => done.push(at),
            Ending::Done { history: History::FailuresOnly, .. } => forgotten.push(at),
            Ending::Back { .. } => back.push(at),
        }
    }
    for (statement, which) in [(DONE, done), (COMPLETE, forgotten)] {
        if !which.is_empty() {
            complete(client, statement, batch, &which, std::mem::take(&mut holds), &mut written).await?;
        }
        // The row has moved since, with a note or a wish to cancel it; or the claim is lost.
        finished.extend(which.iter().filter(|&&at| written[at] == Settled::Lost));
    }
    if !back.is_empty() {
        put_back(client, batch, &back, &mut written).await?;
        // Somebody asked to cancel it; or the claim is lost.
        finished.extend(back.iter().filter(|&&at| written[at] == Settled::Lost));
    }
    if !finished.is_empty() {
        finished.sort_unstable_by_key(|&at| batch[at].claim.id);
        finish(client, batch, &finished, std::mem::take(&mut holds), &mut written).await?;
    }
    if !holds.is_empty() {
        client.rows(DROP_HOLDS, &[(&holds, Type::INT8_ARRAY)]).await?;
    }
    Ok(written)
}

/// Completes jobs whose rows are where they were when they were claimed.
async fn complete(
    client: &impl Sql,
    statement: &str,
    batch: &[Settlement],
    which: &[usize],
    emptied: &[i64],
    written: &mut [Settled],
) -> Result<(), Error> {
    let (ids, fences) = claims(batch, which);
    let ctids: Vec<Option<Ctid>> = which
        .iter()
        .map(|&at| match batch[at].ending {
            Ending::Done { ctid, .. } => ctid,
            _ => None,
        })
        .collect();
    let params: Params = &[
        (&ids, Type::INT8_ARRAY),
        (&fences, Type::INT8_ARRAY),
        (&ctids, Type::TID_ARRAY),
        (&emptied, Type::INT8_ARRAY),
    ];
    mark(&client.rows(statement, params).await?, batch, which, written);
    Ok(())
}

async fn finish(
    client: &impl Sql,
    batch: &[Settlement],
    which: &[usize],
    emptied: &[i64],
    written: &mut [Settled],
) -> Result<(), Error> {
    let (ids, fences) = claims(batch, which);
    let mut states = Vec::with_capacity(which.len());
    let mut errors = Vec::with_capacity(which.len());
    let mut results = Vec::with_capacity(which.len());
    for &at in which {
        let (state, error, result) = match &batch[at].ending {
            Ending::Done { history, .. } => (done_state(*history), &None, &None),
            Ending::Finished { state, error, result } => (Some(*state), error, result),
            Ending::Back { error, .. } => (Some("cancelled"), error, &None),
        };
        states.push(state);
        errors.push(error.as_deref());
        results.push(result.as_deref());
    }
    let params: Params = &[
        (&ids, Type::INT8_ARRAY),
        (&fences, Type::INT8_ARRAY),
        (&states, Type::TEXT_ARRAY),
        (&errors, Type::TEXT_ARRAY),
        (&results, Type::TEXT_ARRAY),
        (&emptied, Type::INT8_ARRAY),
    ];
    mark(&client.rows(FINISH, params).await?, batch, which, written);
    Ok(())
}

/// The state under which finish.sql remembers a job that is done; `None`: not at all.
pub(crate) fn done_state(history: History) -> Option<&'static str> {
    match history {
        History::All => Some("done"),
        History::FailuresOnly => None,
    }
}

async fn put_back(
    client: &impl Sql,
    batch: &[Settlement],
    which: &[usize],
    written: &mut [Settled],
) -> Result<(), Error> {
    let (ids, fences) = claims(batch, which);
    let mut delays = Vec::with_capacity(which.len());
    let mut uncharged = Vec::with_capacity(which.len());
    let mut crashed = Vec::with_capacity(which.len());
    let mut errors = Vec::with_capacity(which.len());
    for &at in which {
        let Ending::Back { delay, uncharged: gratis, crashed: crash, error } = &batch[at].ending else {
            continue;
        };
        delays.push(millis(*delay));
        uncharged.push(*gratis);
        crashed.push(*crash);
        errors.push(error.as_deref());
    }
    let params: Params = &[
        (&ids, Type::INT8_ARRAY),
        (&fences, Type::INT8_ARRAY),
        (&delays, Type::INT8_ARRAY),
        (&uncharged, Type::BOOL_ARRAY),
        (&crashed, Type::BOOL_ARRAY),
        (&errors, Type::TEXT_ARRAY),
    ];
    mark(&client.rows(PUT_BACK, params).await?, batch, which, written);
    Ok(())
}

fn claims(batch: &[Settlement], which: &[usize]) -> (Vec<i64>, Vec<i64>) {
    which.iter().map(|&at| (batch[at].claim.id, batch[at].claim.fence)).unzip()
}

/// Marks as written the claims that came back. They are sorted by id, so each is found by halving. The fence tells apart those
/// of one job: a late holder's result may come in one batch with that of the next holder.
fn mark(rows: &[tokio_postgres::Row], batch: &[Settlement], which: &[usize], written: &mut [Settled]) {
    for row in rows {
        let claim = Claim { id: row.get(0), fence: row.get(1) };
        let first = which.partition_point(|&at| batch[at].claim.id < claim.id);
        let same_job = which[first..].iter().take_while(|&&at| batch[at].claim.id == claim.id);
        if let Some(&at) = same_job.into_iter().find(|&&at| batch[at].claim == claim) {
            written[at] = Settled::Written;
        }
    }
}
