//! Between the contract's messages and the engine's types. Everything that comes in is checked here.

use std::time::{Duration, SystemTime};

use pitwheel::engine::{Attempt, AttemptInfo, Cause, Claimed, Ctid, Ending, Failure, Outcome, decide};
use pitwheel::{Claim, DatabaseError, Error, History, JobDetail, NewJob, State, TraceContext, Verdict};
use pitwheel_proto::v1;
use pitwheel_proto::v1::result::Outcome as Reply;
use tonic::Status;

use crate::dispatch::reports::Refusal;
use crate::limits;

const NOTE_CHARS_MAX: usize = 500;

/// What is told of an error: whose fault it is, and whether to repeat.
pub(crate) fn status(error: &Error) -> Status {
    let words = error.to_string();
    match error {
        Error::NotFound(..) => Status::not_found(words),
        Error::Payload { .. } | Error::Invalid(_) => Status::invalid_argument(words),
        Error::KeyTaken(_) => Status::already_exists(words),
        Error::SchemaBehind { .. } | Error::SchemaAhead { .. } => Status::failed_precondition(words),
        // A value that Postgres does not take (class 22): the caller's, and no use in repeating.
        Error::Database(DatabaseError::Refused { code, .. }) if code.starts_with("22") => {
            Status::invalid_argument(words)
        }
        Error::Database(DatabaseError::Refused { .. }) if !error.is_transient() => Status::internal(words),
        _ => Status::unavailable(words),
    }
}

/// The same for what a node could not write.
pub(crate) fn refusal(refusal: &Refusal) -> Status {
    match refusal {
        Refusal::Ending => Status::unavailable(refusal.to_string()),
        Refusal::Engine(error) => status(error),
    }
}

pub(crate) fn duration(span: Duration) -> prost_types::Duration {
    prost_types::Duration {
        seconds: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(span.subsec_nanos()).unwrap_or(0),
    }
}

fn span(what: &str, duration: prost_types::Duration) -> Result<Duration, Status> {
    let span = Duration::try_from(duration).ok().filter(|span| *span <= limits::SPAN_MAX);
    span.ok_or_else(|| Status::invalid_argument(format!("{what} is not a time span from 0 to 100 years")))
}

fn timestamp(time: SystemTime) -> prost_types::Timestamp {
    prost_types::Timestamp::from(time)
}

fn time(what: &str, stamp: prost_types::Timestamp) -> Result<SystemTime, Status> {
    let time = SystemTime::try_from(stamp).ok().filter(|time| limits::is_sane(*time));
    time.ok_or_else(|| Status::invalid_argument(format!("{what} is not a time from 1970 to 2200")))
}

pub(crate) fn claim(claim: v1::Claim) -> Claim {
    Claim { id: claim.job_id, fence: claim.fence }
}

pub(crate) fn claim_message(claim: Claim) -> v1::Claim {
    v1::Claim { job_id: claim.id, fence: claim.fence }
}

pub(crate) fn assignment(job: Claimed) -> v1::Assignment {
    let trace = TraceContext::of(job.metadata.as_deref());
    let (traceparent, tracestate) = trace.map(|trace| (trace.traceparent, trace.tracestate)).unzip();
    v1::Assignment {
        job_id: job.claim.id,
        fence: job.claim.fence,
        kind: job.kind.as_ref().to_owned(),
        queue: job.queue.as_ref().to_owned(),
        payload: job.payload,
        attempt: job.attempt,
        max_attempts: job.max_attempts,
        timeout: job.timeout.map(duration),
        key: job.key,
        metadata: job.metadata,
        traceparent,
        tracestate: tracestate.flatten(),
    }
}

/// What a worker said of a job.
pub(crate) enum Reported {
    Ended { outcome: Outcome, history: History },
    Released,
    Progress(f32, String),
}

/// What is to be written for it.
pub(crate) enum Written {
    Ending(Ending),
    Note(f32, String),
}

/// Reads one result.
pub(crate) fn reported(result: v1::Result) -> Result<(Claim, Reported), Status> {
    let claim = result.claim.ok_or_else(|| Status::invalid_argument("a result without a claim"))?;
    let claim = self::claim(claim);
    let reply = result
        .outcome
        .ok_or_else(|| Status::invalid_argument(format!("the result of job {} says nothing", claim.id)))?;
    let verdict = |verdict| Reported::Ended { outcome: Outcome::Verdict(verdict), history: History::All };
    let what = match reply {
        Reply::Complete(v1::Complete { result: Some(json), .. }) => {
            let result = Verdict::complete_with_raw(json).map_err(|error| status(&error))?;
            verdict(result)
        }
        Reply::Complete(v1::Complete { forget, .. }) => {
            let history = if forget { History::FailuresOnly } else { History::All };
            Reported::Ended { outcome: Outcome::Verdict(Verdict::Complete), history }
        }
        Reply::Fail(fail) => match fail.retry_after {
            // An own time is asked for by a handler, not by what went wrong beside it.
            Some(after) => verdict(Verdict::retry_after(span("retry_after", after)?, fail.error)),
            None => {
                let failure = Failure { cause: cause(fail.cause), message: fail.error };
                Reported::Ended { outcome: Outcome::Failed(failure), history: History::All }
            }
        },
        Reply::Bury(bury) => verdict(Verdict::bury(bury.reason)),
        Reply::Snooze(snooze) => {
            let delay = snooze.delay.ok_or_else(|| Status::invalid_argument("a snooze without a delay"))?;
            verdict(Verdict::Snooze(span("delay", delay)?))
        }
        Reply::Release(v1::Release {}) => Reported::Released,
        Reply::Progress(progress) => {
            let part = if progress.fraction.is_finite() { progress.fraction.clamp(0.0, 1.0) } else { 0.0 };
            let note = progress.note.chars().filter(|c| *c != '\0').take(NOTE_CHARS_MAX).collect();
            Reported::Progress(part, note)
        }
    };
    Ok((claim, what))
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
    /// Whether the number of attempts decides what it comes to.
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
    pub(crate) fn ending(self, attempt: Option<&AttemptInfo>, ctid: Option<Ctid>) -> Written {
        let (outcome, history) = match self {
            Reported::Ended { outcome, history } => (outcome, history),
            Reported::Released => return Written::Ending(Ending::released()),
            Reported::Progress(fraction, note) => return Written::Note(fraction, note),
        };
        let attempt = Attempt {
            number: attempt.map_or(1, |attempt| attempt.number),
            max: attempt.map_or(1, |attempt| attempt.max),
            history,
            ctid,
            worker: attempt.map_or("", |attempt| &attempt.worker),
            cancelled: attempt.is_some_and(|attempt| attempt.cancelled),
        };
        Written::Ending(decide(outcome, &attempt, fastrand::f64()))
    }
}

/// Reads one job to enqueue. The engine checks what it may contain.
pub(crate) fn new_job(job: v1::NewJob) -> Result<NewJob, Status> {
    let payload = if job.payload.is_empty() { "{}".to_owned() } else { job.payload };
    let mut new = NewJob::raw(job.kind, payload);
    if !job.queue.is_empty() {
        new = new.queue(job.queue);
    }
    if job.run_at.is_some() && job.delay.is_some() {
        return Err(Status::invalid_argument("a job has run_at or delay, not both"));
    }
    if let Some(at) = job.run_at {
        new = new.run_at(time("run_at", at)?);
    }
    if let Some(delay) = job.delay {
        new = new.delay(span("delay", delay)?);
    }
    let priority = i16::try_from(job.priority);
    new = new.priority(priority.map_err(|_| {
        Status::invalid_argument(format!("priority {} is out of range: -9 to 9, higher first", job.priority))
    })?);
    if let Some(max) = job.max_attempts {
        new = new.max_attempts(max);
    }
    if let Some(timeout) = job.timeout {
        new = new.timeout(span("timeout", timeout)?);
    }
    if let Some(key) = job.key {
        new = new.key(key);
    }
    if let Some(metadata) = job.metadata {
        new = new.metadata_raw(metadata);
    }
    Ok(new)
}

/// A job as it is shown.
pub(crate) fn job(detail: JobDetail, only_looks: bool) -> v1::Job {
    let redacted = detail.redacted && only_looks;
    let shown = |json: Option<String>| json.filter(|_| !redacted);
    let summary = detail.summary;
    let state = match summary.state {
        State::Waiting => v1::JobState::Waiting,
        State::Running => v1::JobState::Running,
        State::Done => v1::JobState::Done,
        State::Dead => v1::JobState::Dead,
        State::Cancelled => v1::JobState::Cancelled,
        _ => v1::JobState::Unspecified,
    };
    v1::Job {
        id: summary.id,
        state: state.into(),
        kind: summary.kind,
        queue: summary.queue,
        priority: summary.priority.into(),
        attempt: u32::try_from(summary.attempt).unwrap_or(0),
        max_attempts: u32::try_from(summary.max_attempts).unwrap_or(0),
        run_at: Some(timestamp(summary.run_at)),
        enqueued_at: Some(timestamp(summary.enqueued_at)),
        claimed_at: summary.claimed_at.map(timestamp),
        finished_at: summary.finished_at.map(timestamp),
        key: summary.key,
        payload: shown(Some(detail.payload)).unwrap_or_default(),
        metadata: shown(detail.metadata),
        progress: summary.progress,
        note: summary.note,
        errors: detail.errors.to_string(),
        result: shown(detail.result),
        redacted,
    }
}
