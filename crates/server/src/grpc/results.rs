//! Results that workers report, and what is written for each.

use std::time::SystemTime;

use pitwheel::engine::limits::NOTE_CHARS_MAX;
use pitwheel::engine::{
    Attempt, AttemptInfo, Cause, Ctid, Ending, Failure, Outcome, Plan, check_followers, decide, decide_run,
};
use pitwheel::{Claim, Completion, Error, History, NewJob, Recurrence, Verdict};
use pitwheel_proto::v1;
use pitwheel_proto::v1::result::Outcome as Message;

use crate::dispatch::source::Source;
use crate::grpc::messages::{claim, new_job, span};
use crate::limits;

/// A result as its worker reported it.
pub(crate) enum Reported {
    /// The attempt ended. `history` is whether a completed job is kept; the last progress is not written yet.
    Ended { outcome: Outcome, history: History, last_progress: Option<(f32, String)> },
    /// The worker gives the job back unfinished.
    Released,
    /// The job still runs: how far it is, from 0 to 1, and a note.
    Progress(f32, String),
}

/// What is to be written for a result.
pub(crate) enum Write {
    /// How the attempt ends, for a run when its recurring job runs next, and the last progress.
    Ending(Ending, Option<Box<Plan>>, Option<(f32, String)>),
    /// From 0 to 1, and a note.
    Progress(f32, String),
}

/// Reads one result.
pub(crate) fn reported(result: v1::Result) -> Result<(Claim, Source, Reported), Error> {
    let missing = |message: &str| Error::Invalid(message.to_owned());
    let claim = claim(result.claim.ok_or_else(|| missing("a result has no `claim`"))?);
    let source = if result.completed_by_handler { Source::Handler } else { Source::Worker };
    let message =
        result.outcome.ok_or_else(|| missing(&format!("the result of job {} has no outcome", claim.id)))?;
    let last_progress = result.last_progress.map(progress);
    let ended =
        |outcome| Reported::Ended { outcome, history: History::All, last_progress: last_progress.clone() };
    let verdict = |verdict| ended(Outcome::Verdict(verdict));
    let reported = match message {
        Message::Complete(v1::Complete { result, forget, then, found, next_at }) => {
            let history = if forget { History::FailuresOnly } else { History::All };
            let completion = match result {
                Some(json) => Verdict::complete_with_raw(json)?,
                None => Verdict::complete(),
            };
            let mut completion = followers(then)?.into_iter().fold(completion, Completion::then);
            if let Some(found) = found {
                completion = completion.found(found);
            }
            if let Some(at) = next_at {
                completion = completion.next_at(limits::time("next_at", SystemTime::try_from(at).ok())?);
            }
            Reported::Ended { outcome: Outcome::Verdict(completion.into()), history, last_progress }
        }
        Message::Fail(fail) => match fail.retry_after {
            // Only a handler chooses its own delay, so the cause is an error of the handler.
            Some(after) => verdict(Verdict::retry_after(span("retry_after", after)?, fail.error)),
            None => ended(Outcome::Failed(Failure { cause: cause(fail.cause), message: fail.error })),
        },
        Message::Bury(bury) => verdict(Verdict::bury(bury.reason)),
        Message::Snooze(snooze) => {
            let delay = snooze.delay.ok_or_else(|| missing("a snooze has no `delay`"))?;
            verdict(Verdict::Snooze(span("delay", delay)?))
        }
        Message::Release(v1::Release {}) => Reported::Released,
        Message::Progress(message) => {
            let (fraction, note) = progress(message);
            Reported::Progress(fraction, note)
        }
    };
    Ok((claim, source, reported))
}

/// Progress as it can be stored.
fn progress(message: v1::Progress) -> (f32, String) {
    let fraction = if message.fraction.is_finite() { message.fraction.clamp(0.0, 1.0) } else { 0.0 };
    (fraction, message.note.chars().filter(|c| *c != '\0').take(NOTE_CHARS_MAX).collect())
}

/// The jobs that follow a completion, refused before anything is written.
fn followers(then: Vec<v1::NewJob>) -> Result<Vec<NewJob>, Error> {
    limits::followers(then.len())?;
    let follower = |mut message: v1::NewJob| {
        let step = message.step.take();
        let job = new_job(message)?;
        Ok(match step {
            Some(name) => job.as_step(name),
            None => job,
        })
    };
    let followers = then.into_iter().map(follower).collect::<Result<Vec<NewJob>, Error>>()?;
    check_followers(&followers)?;
    Ok(followers)
}

fn cause(cause: i32) -> Cause {
    match v1::FailureCause::try_from(cause) {
        Ok(v1::FailureCause::Panic) => Cause::Panic,
        Ok(v1::FailureCause::Timeout) => Cause::Timeout,
        Ok(v1::FailureCause::Payload) => Cause::Payload,
        _ => Cause::Error,
    }
}

impl Reported {
    /// Whether an attempt ended.
    pub(crate) fn is_ending(&self) -> bool {
        matches!(self, Reported::Ended { .. })
    }

    /// Whether the job still runs.
    pub(crate) fn is_progress(&self) -> bool {
        matches!(self, Reported::Progress(..))
    }

    /// Whether the number of the attempt decides what is written.
    pub(crate) fn depends_on_attempt(&self) -> bool {
        match self {
            Reported::Ended { outcome: Outcome::Verdict(verdict), .. } => {
                matches!(verdict, Verdict::Retry { .. } | Verdict::Bury { .. })
            }
            Reported::Ended { outcome: Outcome::Failed(_), .. } => true,
            Reported::Released | Reported::Progress(..) => false,
        }
    }

    /// What to write. Without a known attempt the claim is lost, and the write will be refused whatever it is.
    pub(crate) fn write(
        self,
        attempt: Option<&AttemptInfo>,
        ctid: Option<Ctid>,
        recurrence: Option<&Recurrence>,
    ) -> Write {
        let (outcome, history, last_progress) = match self {
            Reported::Ended { outcome, history, last_progress } => (outcome, history, last_progress),
            Reported::Released => return Write::Ending(Ending::Release, None, None),
            Reported::Progress(fraction, note) => return Write::Progress(fraction, note),
        };
        let attempt = Attempt {
            number: attempt.map_or(1, |attempt| attempt.number),
            max: attempt.map_or(1, |attempt| attempt.max),
            history,
            ctid,
            worker: attempt.map_or("", |attempt| &attempt.worker),
            cancelled: attempt.is_some_and(|attempt| attempt.cancelled),
        };
        let random = fastrand::f64();
        let (ending, plan) = match recurrence {
            Some(recurrence) => decide_run(outcome, &attempt, recurrence, random),
            None => (decide(outcome, &attempt, random), None),
        };
        Write::Ending(ending, plan, last_progress)
    }
}
