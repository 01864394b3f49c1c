//! Ending an attempt: fenced, in batches.

use std::time::Duration;

use serde::Serialize;
use tokio_postgres::types::Type;

use crate::backoff::backoff;
use crate::ctid::Ctid;
use crate::db::{self, Sql};
use crate::enqueue::millis;
use crate::error::Error;
use crate::handler::Context;
use crate::job::{History, to_json};
use crate::payload;

const COMPLETE: &str = include_str!("../sql/complete.sql");
const DONE: &str = include_str!("../sql/done.sql");
pub(crate) const FINISH: &str = include_str!("../sql/finish.sql");
const PUT_BACK: &str = include_str!("../sql/put_back.sql");
const DROP_HOLDS: &str = include_str!("../sql/drop_holds.sql");

/// Longer messages are cut: an error is read by people, and fifty of them are kept with the job.
const ERROR_CHARS_MAX: usize = 4000;

/// The value that proves a claim: which job, and the number that grew when it was claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Claim {
    /// The job.
    pub id: i64,
    /// Grows at each claim and never goes back. Every write after the claim names it; hand it to outside systems that can
    /// refuse lower numbers.
    pub fence: i64,
}

/// What became of a write that named a fence.
#[must_use = "a lost claim means the job is no longer ours"]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// It was written.
    Written,
    /// The claim is gone: swept, claimed again, or settled before. Nothing was written.
    Lost,
}

/// How a handler wants its job to go on, when it did not fail.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Verdict {
    /// Done.
    Complete,
    /// Done, and this JSON is kept as its result. Made by [`Verdict::complete_with`].
    CompleteWith(String),
    /// Not yet: again after this long. The attempt is not counted.
    Snooze(Duration),
    /// Failed: again after this long rather than after the usual backoff. Buried when it was the last attempt.
    Retry {
        /// How long to wait.
        after: Duration,
        /// What went wrong.
        reason: String,
    },
    /// Never again: it is dead, whatever attempts are left.
    Bury {
        /// Why.
        reason: String,
    },
}

impl Verdict {
    /// Done, with a result to keep. A result that is not JSON or too large fails the attempt.
    pub fn complete_with(result: &impl Serialize) -> Result<Verdict, Error> {
        let json = to_json(result).map_err(|problem| Error::Payload { what: "result", problem })?;
        Verdict::complete_with_raw(json)
    }

    /// The same, from JSON text.
    pub fn complete_with_raw(json: impl Into<String>) -> Result<Verdict, Error> {
        let json = json.into();
        payload::check(&json).map_err(|problem| Error::Payload { what: "result", problem })?;
        Ok(Verdict::CompleteWith(json))
    }

    /// Never again, because of this.
    pub fn bury(reason: impl std::fmt::Display) -> Verdict {
        Verdict::Bury { reason: reason.to_string() }
    }

    /// Again after this long, because of this.
    pub fn retry_after(after: Duration, reason: impl std::fmt::Display) -> Verdict {
        Verdict::Retry { after, reason: reason.to_string() }
    }
}

impl From<()> for Verdict {
    fn from((): ()) -> Verdict {
        Verdict::Complete
    }
}

/// What a run of a handler came to.
#[derive(Debug)]
pub enum Outcome {
    /// It said how to go on.
    Verdict(Verdict),
    /// It failed.
    Failed(Failure),
}

/// An attempt that failed: which way, and in which words.
#[derive(Debug)]
pub struct Failure {
    /// Which way.
    pub cause: Cause,
    /// In which words.
    pub message: String,
}

/// Which way an attempt failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The handler returned an error.
    Error,
    /// The handler panicked.
    Panic,
    /// The attempt took longer than the job's timeout.
    Timeout,
    /// The payload is not what the handler's type says.
    Payload,
    /// The worker died while it ran the job.
    Crash,
}

/// A claim and how it ends.
#[derive(Debug, Clone)]
pub struct Settlement {
    /// Whose.
    pub claim: Claim,
    /// How.
    pub ending: Ending,
}

/// The ways a claim ends.
#[derive(Debug, Clone)]
pub enum Ending {
    /// Done, and remembered if its kind wants that.
    Done {
        /// What its kind wants.
        history: History,
        /// Where its row stood when it was claimed.
        ctid: Option<Ctid>,
    },
    /// Done, dead or cancelled, and moved to the history with an error or a result.
    Finished {
        /// `done`, `dead` or `cancelled`.
        state: &'static str,
        /// One more entry for the job's errors, as JSON text.
        error: Option<String>,
        /// What the handler gave back, as JSON text.
        result: Option<String>,
    },
    /// Waits again.
    Back {
        /// From now.
        delay: Duration,
        /// The attempt is not counted.
        uncharged: bool,
        /// A crash is counted.
        crashed: bool,
        /// One more entry for the job's errors, as JSON text.
        error: Option<String>,
    },
}

impl Ending {
    /// Given back as if it had never been claimed.
    pub fn released() -> Ending {
        Ending::Back { delay: Duration::ZERO, uncharged: true, crashed: false, error: None }
    }

    /// Done; remembered if its kind wants that, or there is a result to keep.
    pub fn done(history: History, ctid: Option<Ctid>, result: Option<String>) -> Ending {
        match result {
            None => Ending::Done { history, ctid },
            result => Ending::Finished { state: "done", error: None, result },
        }
    }

    pub(crate) fn dead(error: String) -> Ending {
        Ending::Finished { state: "dead", error: Some(error), result: None }
    }
}

/// What an attempt is measured by when it ends.
pub struct Attempt<'a> {
    /// Counted from 1.
    pub number: u32,
    /// How many there are.
    pub max: u32,
    /// What its kind wants remembered.
    pub history: History,
    /// Where its row stood when it was claimed.
    pub ctid: Option<Ctid>,
    /// The name of the worker that ran it.
    pub worker: &'a str,
    /// Somebody asked to cancel it: a failure is then not tried again.
    pub cancelled: bool,
}

/// How an outcome ends its claim. `random` spreads the backoff.
pub fn decide(outcome: Outcome, attempt: &Attempt<'_>, random: f64) -> Ending {
    let (failure, wait) = match outcome {
        Outcome::Verdict(Verdict::Complete) => return Ending::done(attempt.history, attempt.ctid, None),
        Outcome::Verdict(Verdict::CompleteWith(result)) => {
            return Ending::done(attempt.history, attempt.ctid, Some(result));
        }
        Outcome::Verdict(Verdict::Snooze(delay)) => {
            return Ending::Back { delay, uncharged: true, crashed: false, error: None };
        }
        Outcome::Verdict(Verdict::Bury { reason }) => {
            return Ending::dead(error_entry(Cause::Error, &reason, attempt.number, attempt.worker));
        }
        Outcome::Verdict(Verdict::Retry { after, reason }) => {
            (Failure { cause: Cause::Error, message: reason }, Some(after))
        }
        Outcome::Failed(failure) => (failure, None),
    };
    let error = error_entry(failure.cause, &failure.message, attempt.number, attempt.worker);
    if attempt.cancelled {
        return Ending::Finished { state: "cancelled", error: Some(error), result: None };
    }
    if attempt.number >= attempt.max {
        return Ending::dead(error);
    }
    let delay = wait.unwrap_or_else(|| backoff(attempt.number, random));
    Ending::Back { delay, uncharged: false, crashed: false, error: Some(error) }
}

/// What a handler's outcome means if it completed the job in a transaction of its own. If that was committed, the job is gone
/// and whatever is written for it is refused; if it was not, the job is still held and its effects are not there.
pub(crate) fn committed_or_not(context: &Context, outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Verdict(_) if context.was_settled_by_handler() => Outcome::Failed(Failure {
            cause: Cause::Error,
            message: "the transaction in which the handler completed the job was not committed".into(),
        }),
        outcome => outcome,
    }
}

/// One entry of a job's errors. Postgres adds the time.
pub(crate) fn error_entry(cause: Cause, message: &str, attempt: u32, worker: &str) -> String {
    let message: String = message.chars().filter(|c| *c != '\0').take(ERROR_CHARS_MAX).collect();
    serde_json::json!({ "attempt": attempt, "cause": cause, "message": message, "worker": worker })
        .to_string()
}

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
    let params: db::Params = &[
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
    let params: db::Params = &[
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
    let params: db::Params = &[
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
