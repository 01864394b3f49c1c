//! How an attempt ends: what the handler returns, and what the engine makes of it.

use std::time::{Duration, SystemTime};

use serde::Serialize;

use crate::error::Error;
use crate::job::backoff::backoff;
use crate::job::claim::Claim;
use crate::job::limits::ERROR_CHARS_MAX;
use crate::job::new_job::{History, NewJob, to_json};
use crate::job::payload;
use crate::job::recurrence::{NextHint, Plan};
use crate::postgres::Ctid;

/// After this many crashes a job is a suspect and runs alone. Not after the first: machines fail more often than jobs kill
/// their process, and all the jobs of a failed machine would run one by one. The statements and the index `job_suspect` have
/// the same number.
pub(crate) const SUSPECT_CRASHES: i16 = 2;
/// After this many crashes a job is buried. It ran alone the last time, so it caused the crash.
const CRASHES_MAX: i16 = SUSPECT_CRASHES + 1;

/// What a handler that did not fail wants for its job.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Verdict {
    /// The job is done. Made by [`Verdict::complete`] and [`Verdict::complete_with`].
    Complete(Completion),
    /// Run the job again after this long. The attempt is not counted.
    Snooze(Duration),
    /// The attempt failed: run the job again after this long instead of the usual backoff. If it was the last attempt, the
    /// job is buried.
    Retry {
        /// The delay before the next attempt.
        after: Duration,
        /// The error that is kept with the job.
        reason: String,
    },
    /// The job is dead, even if it has attempts left.
    Bury {
        /// The error that is kept with the job.
        reason: String,
    },
}

/// A completed job: its result, and the jobs that follow from it.
#[derive(Debug, Clone, Default)]
pub struct Completion {
    pub(crate) result: Option<String>,
    pub(crate) then: Vec<NewJob>,
    pub(crate) next: NextHint,
}

impl Verdict {
    /// The job is done.
    pub fn complete() -> Completion {
        Completion::default()
    }

    /// The job is done, with a result to keep. A result that is not JSON, or too large, fails the attempt.
    pub fn complete_with(result: &impl Serialize) -> Result<Completion, Error> {
        let json = to_json(result).map_err(|problem| Error::Payload { what: "result", problem })?;
        Verdict::complete_with_raw(json)
    }

    /// The job is done, with a result to keep as JSON text.
    pub fn complete_with_raw(json: impl Into<String>) -> Result<Completion, Error> {
        let json = json.into();
        payload::check(&json).map_err(|problem| Error::Payload { what: "result", problem })?;
        Ok(Completion { result: Some(json), ..Completion::default() })
    }

    /// The job is dead, for this reason.
    pub fn bury(reason: impl std::fmt::Display) -> Verdict {
        Verdict::Bury { reason: reason.to_string() }
    }

    /// The attempt failed for this reason: run the job again after this long.
    pub fn retry_after(after: Duration, reason: impl std::fmt::Display) -> Verdict {
        Verdict::Retry { after, reason: reason.to_string() }
    }
}

impl Completion {
    /// Enqueues a follower: a job that exists if and only if this completion is written. If the claim was lost, it does not
    /// exist. At most 100 per job, with 3 MiB of payloads, metadata and keys.
    #[must_use = "a completion does nothing until the handler returns it"]
    pub fn then(mut self, job: impl Into<NewJob>) -> Completion {
        self.then.push(job.into());
        self
    }

    /// Adds a step to the pipeline of this job, after it, if the pipeline has none of this name. Like [`Completion::then`] it exists if
    /// and only if this completion is written. In a job that is no step it is the same as `then`.
    #[must_use = "a completion does nothing until the handler returns it"]
    pub fn then_step(self, name: impl Into<String>, job: impl Into<NewJob>) -> Completion {
        self.then(job.into().as_step(name))
    }

    /// How many new things a run of a recurring job found. With an adaptive cadence, a value above 0 shortens the interval, and 0
    /// lengthens it; without a call of this, it stays. Other jobs ignore it.
    #[must_use = "a completion does nothing until the handler returns it"]
    pub fn found(mut self, count: u64) -> Completion {
        self.next.found = Some(count);
        self
    }

    /// The time of the next run of a recurring job, instead of the one by its cadence. Other jobs ignore it.
    #[must_use = "a completion does nothing until the handler returns it"]
    pub fn next_at(mut self, time: SystemTime) -> Completion {
        self.next.at = Some(time);
        self
    }
}

impl From<()> for Verdict {
    fn from((): ()) -> Verdict {
        Verdict::complete().into()
    }
}

impl From<Completion> for Verdict {
    fn from(completion: Completion) -> Verdict {
        Verdict::Complete(completion)
    }
}

/// What a run of a handler came to.
#[derive(Debug)]
pub enum Outcome {
    /// It returned a verdict.
    Verdict(Verdict),
    /// It failed.
    Failed(Failure),
}

/// A failed attempt.
#[derive(Debug)]
pub struct Failure {
    /// How it failed.
    pub cause: Cause,
    /// The error message.
    pub message: String,
}

/// How an attempt failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The handler returned an error.
    Error,
    /// The handler panicked.
    Panic,
    /// The attempt took longer than the job's timeout.
    Timeout,
    /// The payload does not fit the handler's type.
    Payload,
    /// The worker died while it ran the job.
    Crash,
}

/// A claim and how it ends.
#[derive(Debug, Clone)]
pub struct Settlement {
    /// The claim.
    pub claim: Claim,
    /// How it ends.
    pub ending: Ending,
    /// When its recurring job runs next. Without it, for a run, the maintenance of a node plans that.
    pub plan: Option<Box<Plan>>,
    /// The job is known to be in a lane, so that the next one of many lanes is promoted at once.
    pub in_lane: bool,
    /// The last progress, from 0 to 1 with a note. Reports of it during the run may not have been written.
    pub last_progress: Option<(f32, String)>,
}

impl Settlement {
    /// The ending of a job that is no run of a recurring job.
    pub fn new(claim: Claim, ending: Ending) -> Settlement {
        Settlement { claim, ending, plan: None, in_lane: false, last_progress: None }
    }

    /// The last progress, if it is to be written: the note can be read afterwards.
    pub(crate) fn kept_progress(&self) -> Option<&(f32, String)> {
        let forgets =
            matches!(self.ending, Ending::Done { history: History::FailuresOnly, result: None, .. });
        self.last_progress.as_ref().filter(|_| !forgets)
    }

    /// Lets it be found by its id: the statements that find a row by its ctid wait for its lock, and the others of their batch with it.
    /// For an ending whose row was locked before.
    pub fn forget_ctid(&mut self) {
        if let Ending::Done { ctid, .. } = &mut self.ending {
            *ctid = None;
        }
    }

    /// The claim is given back as if it had never been made.
    pub fn release(claim: Claim) -> Settlement {
        Settlement::new(claim, Ending::Release)
    }
}

/// The ways an attempt ends. The first three end the job, the others let it wait again. `error` is one more entry for the
/// job's errors, as JSON text ([`error_entry`]). `then` are the followers: they are enqueued by the statement that writes the
/// ending, so they exist if and only if it was written.
#[derive(Debug, Clone)]
pub enum Ending {
    /// The job is done.
    Done {
        /// Whether it leaves a row in the history. A result is always kept.
        history: History,
        /// Where its row was when it was claimed, if that is known.
        ctid: Option<Ctid>,
        /// The handler's result, as JSON text.
        result: Option<String>,
        /// The followers.
        then: Vec<NewJob>,
    },
    /// The job is buried.
    Dead {
        /// Why.
        error: String,
        /// The followers.
        then: Vec<NewJob>,
    },
    /// The job was cancelled while it ran.
    Cancelled {
        /// How the handler ended.
        error: Option<String>,
        /// The followers.
        then: Vec<NewJob>,
    },
    /// The attempt failed; the job waits for the next one.
    Retry {
        /// How long it waits.
        delay: Duration,
        /// Why.
        error: String,
    },
    /// The job waits again; the attempt is not counted.
    Snooze {
        /// How long it waits.
        delay: Duration,
    },
    /// The job waits again, as if it had never been claimed.
    Release,
    /// Its worker died; the job waits again. The attempt is not counted, the crash is.
    Crash {
        /// What is known about it.
        error: String,
    },
}

impl Ending {
    /// The bytes that are written with it: its result, and the payloads, metadata and keys of its followers.
    pub fn bytes(&self) -> usize {
        let followers = self.then().iter().map(NewJob::bytes);
        let result = if let Ending::Done { result: Some(result), .. } = self { result.len() } else { 0 };
        result + followers.sum::<usize>()
    }

    /// Done, with nothing to keep but what its kind wants in the history.
    pub fn done(history: History, ctid: Option<Ctid>) -> Ending {
        Ending::Done { history, ctid, result: None, then: Vec::new() }
    }

    /// Whether the job is done.
    pub fn is_done(&self) -> bool {
        matches!(self, Ending::Done { .. })
    }

    /// Dead, and nothing follows.
    pub fn dead(error: String) -> Ending {
        Ending::Dead { error, then: Vec::new() }
    }

    /// Where the row was when it was claimed, if that is known and of use.
    pub(crate) fn ctid(&self) -> Option<Ctid> {
        if let Ending::Done { ctid, .. } = self { *ctid } else { None }
    }

    /// Whether the job is done and moves to the history.
    pub(crate) fn keeps_history(&self) -> bool {
        matches!(self, Ending::Done { history: History::All, .. })
    }

    /// Whether it lets the job wait again.
    pub(crate) fn waits_again(&self) -> bool {
        !matches!(self, Ending::Done { .. } | Ending::Dead { .. } | Ending::Cancelled { .. })
    }

    /// The jobs that follow from it.
    pub fn then(&self) -> &[NewJob] {
        match self {
            Ending::Done { then, .. } | Ending::Dead { then, .. } | Ending::Cancelled { then, .. } => then,
            Ending::Retry { .. } | Ending::Snooze { .. } | Ending::Release | Ending::Crash { .. } => &[],
        }
    }
}

/// What the engine needs to know about an attempt to end it.
pub struct Attempt<'a> {
    /// The number of the attempt, counted from 1.
    pub number: u32,
    /// The maximum number of attempts.
    pub max: u32,
    /// What its kind wants in the history.
    pub history: History,
    /// Where its row was when it was claimed, if that is known.
    pub ctid: Option<Ctid>,
    /// The name of the worker that ran it.
    pub worker: &'a str,
    /// A cancel was requested: a failed attempt is not retried.
    pub cancelled: bool,
}

/// How an outcome ends its attempt. `random`, between 0 and 1, spreads the backoff.
pub fn decide(outcome: Outcome, attempt: &Attempt<'_>, random: f64) -> Ending {
    let (failure, delay) = match outcome {
        Outcome::Verdict(Verdict::Complete(Completion { result, then, .. })) => {
            return Ending::Done { history: attempt.history, ctid: attempt.ctid, result, then };
        }
        Outcome::Verdict(Verdict::Snooze(delay)) => return Ending::Snooze { delay },
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
        return Ending::Cancelled { error: Some(error), then: Vec::new() };
    }
    if attempt.number >= attempt.max {
        return Ending::dead(error);
    }
    Ending::Retry { delay: delay.unwrap_or_else(|| backoff(attempt.number, random)), error }
}

/// How the death of a worker ends an attempt of a job that had `crashes` crashes before.
pub(crate) fn after_crash(crashes: i16, attempt: u32, worker: &str) -> Ending {
    let count = crashes + 1;
    if count >= CRASHES_MAX {
        let message =
            format!("its worker died while running it, {count} times, the last time running nothing else");
        return Ending::dead(error_entry(Cause::Crash, &message, attempt, worker));
    }
    Ending::Crash { error: error_entry(Cause::Crash, "its worker died while running it", attempt, worker) }
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

/// One entry of a job's errors, as JSON text. Postgres adds the time.
pub fn error_entry(cause: Cause, message: &str, attempt: u32, worker: &str) -> String {
    let message: String = message.chars().filter(|c| *c != '\0').take(ERROR_CHARS_MAX).collect();
    serde_json::json!({ "attempt": attempt, "cause": cause, "message": message, "worker": worker })
        .to_string()
}

#[cfg(test)]
mod tests;
