//! The values of the library as messages of the gRPC contract, and back.

use std::time::{Duration, Instant, SystemTime};

use pitwheel_proto::v1;
use pitwheel_proto::v1::result::Outcome as Message;

use crate::job::claim::{Claim, ClaimRefusal, Claimed};
use crate::job::ending::{Cause, Completion, Outcome, Verdict};
use crate::job::limits::ERROR_CHARS_MAX;
use crate::job::new_job::{History, NewJob};
use crate::job::recurrence::{Clock, Recurrence};
use crate::job::step::{CurrentStep, ParentStep};
use crate::postgres::Ctid;

pub(super) fn new_job(job: &NewJob) -> v1::NewJob {
    v1::NewJob {
        kind: job.kind.clone(),
        payload: job.payload.clone().unwrap_or_default(),
        queue: job.queue.clone(),
        run_at: job.run_at.map(prost_types::Timestamp::from),
        delay: Some(job.delay).filter(|delay| !delay.is_zero()).and_then(|delay| delay.try_into().ok()),
        priority: job.priority.into(),
        max_attempts: Some(job.max_attempts),
        timeout: job.timeout.and_then(|span| span.try_into().ok()),
        key: job.key.clone(),
        metadata: job.metadata.clone().and_then(Result::ok),
        lane: job.lane.as_ref().map(|lane| lane.as_json().to_owned()),
        lane_pass: job.lane_pass,
        step: job.step.clone(),
    }
}

pub(super) fn result(claim: Claim, outcome: Message) -> v1::Result {
    v1::Result { claim: Some(claim_message(claim)), outcome: Some(outcome), ..v1::Result::default() }
}

/// About how many bytes a result takes up in a message. Only values of any length are counted.
pub(super) fn result_bytes(result: &v1::Result) -> usize {
    match &result.outcome {
        Some(Message::Complete(complete)) => {
            let followers = complete.then.iter().map(job_bytes).sum::<usize>();
            complete.result.as_ref().map_or(0, String::len) + followers
        }
        Some(Message::Fail(fail)) => fail.error.len(),
        Some(Message::Bury(bury)) => bury.reason.len(),
        _ => 0,
    }
}

/// About how many bytes a job takes up in a message.
pub(super) fn job_bytes(job: &v1::NewJob) -> usize {
    let optional = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    200 + job.payload.len() + optional(&job.metadata) + optional(&job.key) + optional(&job.lane)
}

/// Why a job was not claimed. A reason of a later version means that another worker may have it.
pub(super) fn refusal_of(reason: v1::ClaimRefusal) -> ClaimRefusal {
    match reason {
        v1::ClaimRefusal::Finished => ClaimRefusal::Finished,
        v1::ClaimRefusal::OutOfAttempts => ClaimRefusal::OutOfAttempts,
        v1::ClaimRefusal::LaneBusy => ClaimRefusal::LaneBusy,
        v1::ClaimRefusal::Paused => ClaimRefusal::Paused,
        v1::ClaimRefusal::NoHandler => ClaimRefusal::NoHandler,
        v1::ClaimRefusal::Taken | v1::ClaimRefusal::Unspecified => ClaimRefusal::Taken,
    }
}

pub(super) fn claim_message(claim: Claim) -> v1::Claim {
    v1::Claim { job_id: claim.id, fence: claim.fence, worker_id: claim.holder }
}

pub(super) fn claim_of(message: &v1::Claim) -> Claim {
    Claim { id: message.job_id, fence: message.fence, holder: message.worker_id }
}

pub(super) fn outcome(outcome: Outcome, history: History) -> Message {
    match outcome {
        Outcome::Verdict(Verdict::Complete(Completion { result, then, next })) => {
            Message::Complete(v1::Complete {
                forget: history == History::FailuresOnly && result.is_none(),
                result,
                then: then.iter().map(new_job).collect(),
                found: next.found,
                next_at: next.at.map(prost_types::Timestamp::from),
            })
        }
        Outcome::Verdict(Verdict::Snooze(delay)) => Message::Snooze(v1::Snooze { delay: Some(span(delay)) }),
        Outcome::Verdict(Verdict::Bury { reason }) => Message::Bury(v1::Bury { reason: cut(&reason) }),
        Outcome::Verdict(Verdict::Retry { after, reason }) => Message::Fail(v1::Fail {
            error: cut(&reason),
            retry_after: Some(span(after)),
            cause: v1::FailureCause::Error.into(),
        }),
        Outcome::Failed(failure) => {
            let cause = match failure.cause {
                Cause::Panic => v1::FailureCause::Panic,
                Cause::Timeout => v1::FailureCause::Timeout,
                Cause::Payload => v1::FailureCause::Payload,
                Cause::Error | Cause::Crash => v1::FailureCause::Error,
            };
            Message::Fail(v1::Fail { error: cut(&failure.message), retry_after: None, cause: cause.into() })
        }
    }
}

pub(super) fn release(claim: Claim) -> v1::Result {
    result(claim, Message::Release(v1::Release {}))
}

/// What is reported in the place of a result that the server refused.
pub(super) fn refused(refused: &v1::Result, problem: &str) -> v1::Result {
    let error = cut(&format!("its result was refused: {problem}"));
    let fail = v1::Fail { error, retry_after: None, cause: v1::FailureCause::Error.into() };
    v1::Result { outcome: Some(Message::Fail(fail)), ..refused.clone() }
}

/// The server cuts errors too; this keeps the message small enough to be accepted.
fn cut(text: &str) -> String {
    text.chars().take(ERROR_CHARS_MAX).collect()
}

fn span(span: Duration) -> prost_types::Duration {
    prost_types::Duration::try_from(span).unwrap_or(prost_types::Duration { seconds: i64::MAX, nanos: 0 })
}

/// An assignment as a claim of this worker. The server keeps what it needs to find the row again.
pub(super) fn claimed(worker: i64, job: v1::Assignment) -> Claimed {
    Claimed {
        claim: Claim { id: job.job_id, fence: job.fence, holder: worker },
        ctid: Ctid::default(),
        hold: 0,
        attempt: job.attempt,
        max_attempts: job.max_attempts,
        timeout: job.timeout.and_then(|span| span.try_into().ok()),
        run_at: SystemTime::UNIX_EPOCH,
        priority: 0,
        queue: job.queue.into(),
        kind: job.kind.into(),
        key: job.key,
        payload: job.payload,
        metadata: job.metadata,
        recurrence: job.recurrence.and_then(recurrence),
        lane: job.lane,
        step: job.step.and_then(step),
    }
}

/// The step of a pipeline that a job is.
fn step(message: v1::CurrentStep) -> Option<Box<CurrentStep>> {
    let parents = message.parents.into_iter().map(|parent| {
        let v1::ParentStep { name, state, result, result_left_out } = parent;
        Some(ParentStep { name, state: state.parse().ok()?, result, result_left_out })
    });
    let parents = parents.collect::<Option<Vec<ParentStep>>>()?;
    Some(Box::new(CurrentStep { pipeline: message.pipeline_id, name: message.name, parents }))
}

/// The recurring job of a run. The server plans the next run; a handler that completes in its own transaction plans it here.
fn recurrence(message: v1::Recurrence) -> Option<Box<Recurrence>> {
    let planned_at = SystemTime::try_from(message.planned_at?).ok()?;
    Some(Box::new(Recurrence {
        id: message.recurring_id,
        key: message.key,
        planned_at,
        consecutive_failures: message.consecutive_failures,
        interval: message.interval.and_then(|span| span.try_into().ok()),
        cadence: message.cadence.parse().ok()?,
        misfire: message.misfire.parse().ok()?,
        version: message.version,
        carried: false,
        clock: Clock { read: SystemTime::try_from(message.claimed_at?).ok()?, at: Instant::now() },
    }))
}
