//! How an attempt ends: what the handler says, and what the engine makes of it.

use std::time::Duration;

use serde::Serialize;

use crate::error::Error;
use crate::job::backoff::backoff;
use crate::job::claim::Claim;
use crate::job::limits::ERROR_CHARS_MAX;
use crate::job::new_job::{History, to_json};
use crate::job::payload;
use crate::postgres::Ctid;

/// A job that was running when its worker died this often runs alone from then on. Once is benefit of the doubt: machines
/// die more often than jobs kill them, and running all their jobs one by one would be worse than the crash.
/// The statements and the index job_suspect carry the same number.
pub(crate) const SUSPECT_CRASHES: i16 = 2;

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

/// What an outcome means if the handler completed the job in a transaction of its own. If that transaction was committed, the
/// job is gone, and whatever is written for it is refused. If not, the job is still held and its effects do not exist.
pub(crate) fn unless_committed(settled_by_handler: bool, outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Verdict(_) if settled_by_handler => Outcome::Failed(Failure {
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
