//! Jobs, claims and times between the messages of the contract and the types of the engine.

use std::time::{Duration, SystemTime};

use pitwheel::engine::Claimed;
use pitwheel::{
    Claim, ClaimRefusal, CurrentStep, Error, JobDetail, Lane, NewJob, ParentStep, Recurrence, State,
    TraceContext,
};
use pitwheel_proto::v1;

use crate::dispatch::ended::Running;
use crate::limits;
use crate::views::without_messages;

pub(crate) fn duration(span: Duration) -> prost_types::Duration {
    prost_types::Duration {
        seconds: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(span.subsec_nanos()).unwrap_or(0),
    }
}

/// A time span of a request.
pub(crate) fn span(field: &str, duration: prost_types::Duration) -> Result<Duration, Error> {
    limits::span(field, Duration::try_from(duration).ok())
}

pub(crate) fn claim(claim: v1::Claim) -> Claim {
    Claim { id: claim.job_id, fence: claim.fence, holder: claim.worker_id }
}

pub(crate) fn claim_message(claim: Claim) -> v1::Claim {
    v1::Claim { job_id: claim.id, fence: claim.fence, worker_id: claim.holder }
}

/// Ended streams by worker, each with what its worker still runs.
pub(crate) fn ended_streams(ended: Vec<v1::EndedStream>) -> Vec<(i64, Running)> {
    let ended = ended.into_iter().map(|stream| {
        let holder = stream.worker_id;
        (holder, stream.holding.into_iter().map(|held| Claim { holder, ..claim(held) }).collect())
    });
    ended.collect()
}

/// Why a job was not claimed.
pub(crate) fn claim_refused(refusal: ClaimRefusal) -> v1::ClaimRefused {
    let reason = match refusal {
        ClaimRefusal::Taken => v1::ClaimRefusal::Taken,
        ClaimRefusal::Finished => v1::ClaimRefusal::Finished,
        ClaimRefusal::OutOfAttempts => v1::ClaimRefusal::OutOfAttempts,
        ClaimRefusal::LaneBusy => v1::ClaimRefusal::LaneBusy,
        ClaimRefusal::Paused => v1::ClaimRefusal::Paused,
        ClaimRefusal::NoHandler => v1::ClaimRefusal::NoHandler,
        _ => v1::ClaimRefusal::Unspecified,
    };
    v1::ClaimRefused { reason: reason.into() }
}

/// A claimed job as its worker receives it.
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
        worker_id: job.claim.holder,
        recurrence: job.recurrence.as_deref().map(recurrence),
        lane: job.lane,
        step: job.step.map(|step| current_step(*step)),
    }
}

/// The step of a pipeline that a job is.
fn current_step(step: CurrentStep) -> v1::CurrentStep {
    let parent = |parent: ParentStep| v1::ParentStep {
        name: parent.name,
        state: parent.state.as_str().to_owned(),
        result: parent.result,
        result_left_out: parent.result_left_out,
    };
    v1::CurrentStep {
        pipeline_id: step.pipeline,
        name: step.name,
        parents: step.parents.into_iter().map(parent).collect(),
    }
}

/// The recurring job of a run.
fn recurrence(run: &Recurrence) -> v1::Recurrence {
    v1::Recurrence {
        recurring_id: run.id,
        key: run.key.clone(),
        planned_at: Some(run.planned_at.into()),
        consecutive_failures: run.consecutive_failures,
        interval: run.interval.map(duration),
        cadence: run.cadence().to_string(),
        misfire: run.misfire().as_str().to_owned(),
        version: run.version(),
        claimed_at: Some(run.claimed_at().into()),
    }
}

/// A job to enqueue. The engine checks its payload, names and numbers.
pub(crate) fn new_job(job: v1::NewJob) -> Result<NewJob, Error> {
    let payload = if job.payload.is_empty() { "{}".to_owned() } else { job.payload };
    let mut new = NewJob::raw(job.kind, payload);
    if !job.queue.is_empty() {
        new = new.queue(job.queue);
    }
    if job.run_at.is_some() && job.delay.is_some() {
        return Err(Error::Invalid("a job has `run_at` or `delay`, not both".into()));
    }
    if let Some(at) = job.run_at {
        new = new.run_at(limits::time("run_at", SystemTime::try_from(at).ok())?);
    }
    if let Some(delay) = job.delay {
        new = new.delay(span("delay", delay)?);
    }
    let priority = i16::try_from(job.priority);
    new = new.priority(priority.map_err(|_| {
        Error::Invalid(format!("priority {} is out of range: -9 to 9, higher first", job.priority))
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
    if let Some(lane) = job.lane {
        new = new.lane(Lane::from_json(&lane)?);
    }
    Ok(new.lane_pass(job.lane_pass))
}

/// One job in full. `redact` hides key, lane, note, payload, metadata, result and error messages of a redacted kind.
pub(crate) fn job(detail: JobDetail, redact: bool) -> v1::Job {
    let redacted = detail.summary.redacted && redact;
    let shown = |json: Option<String>| json.filter(|_| !redacted);
    let errors = if redacted { without_messages(detail.errors) } else { detail.errors };
    let summary = detail.summary;
    let state = match summary.state {
        State::Waiting => v1::JobState::Waiting,
        State::Blocked => v1::JobState::Blocked,
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
        run_at: Some(summary.run_at.into()),
        enqueued_at: Some(summary.enqueued_at.into()),
        claimed_at: summary.claimed_at.map(Into::into),
        finished_at: summary.finished_at.map(Into::into),
        key: shown(summary.key),
        payload: shown(Some(detail.payload)).unwrap_or_default(),
        metadata: shown(detail.metadata),
        progress: summary.progress,
        note: shown(summary.note),
        errors: errors.to_string(),
        result: shown(detail.result),
        redacted,
        lane: shown(summary.lane),
        unserved: summary.unserved,
        pipeline_id: detail.pipeline,
        step: detail.step,
    }
}

#[cfg(test)]
mod tests {
    use pitwheel::StepState;
    use pitwheel::engine::Ctid;
    use tonic_prost::prost::Message;

    use super::*;
    use crate::dispatch::job_bytes::job_bytes;

    /// A job whose texts have so many bytes each.
    fn claimed(bytes: usize) -> Claimed {
        let text = || "x".repeat(bytes);
        let parent = |state| ParentStep { name: text(), state, result: Some(text()), result_left_out: true };
        let parents = vec![parent(StepState::Done), parent(StepState::Cancelled)];
        Claimed {
            claim: Claim { id: i64::MAX, fence: i64::MAX, holder: i64::MAX },
            ctid: Ctid::default(),
            hold: i64::MAX,
            attempt: u32::MAX,
            max_attempts: u32::MAX,
            timeout: Some(Duration::MAX),
            run_at: SystemTime::UNIX_EPOCH,
            priority: 0,
            queue: text().into(),
            kind: text().into(),
            key: Some(text()),
            lane: Some(text()),
            payload: text(),
            metadata: Some(format!(
                r#"{{"traceparent":"00-{:032x}-{:016x}-01","tracestate":"{}"}}"#,
                1,
                1,
                "x".repeat(512)
            )),
            recurrence: None,
            step: Some(Box::new(CurrentStep { pipeline: i64::MAX, name: text(), parents })),
        }
    }

    #[test]
    fn the_bytes_of_a_job_are_those_of_its_message_and_a_few_more() {
        for bytes in [0, 60, 100_000] {
            let (counted, encoded) = (job_bytes(&claimed(bytes)), assignment(claimed(bytes)).encoded_len());
            assert!((encoded..encoded + 500).contains(&counted), "{counted} are counted of {encoded}");
        }
    }
}
