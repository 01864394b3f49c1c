//! The definition of a pipeline as JSON, as `pitwheel.insert_pipeline` reads it.

use serde::Serialize;
use serde_json::value::RawValue;

use crate::engine::enqueue::{micros, millis};
use crate::error::Error;
use crate::job::new_pipeline::{NewPipeline, NewStep};

#[derive(Serialize)]
struct Definition<'a> {
    name: &'a str,
    on_failure: &'static str,
    steps: Vec<StepDefinition<'a>>,
}

#[derive(Serialize)]
struct StepDefinition<'a> {
    name: &'a str,
    after: &'a [String],
    job: JobDefinition<'a>,
}

#[derive(Serialize)]
struct JobDefinition<'a> {
    kind: &'a str,
    payload: &'a RawValue,
    queue: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    run_at_us: Option<i64>,
    delay_ms: i64,
    priority: i16,
    max_attempts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lane: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lane_pass: Option<bool>,
}

/// The definition of a pipeline, which is checked before.
pub(crate) fn definition(new: &NewPipeline) -> Result<String, Error> {
    new.check()?;
    let steps = new.steps.iter().map(step).collect::<Result<Vec<StepDefinition>, serde_json::Error>>();
    let definition = steps.and_then(|steps| {
        let on_failure = new.on_failure.as_str();
        serde_json::to_string(&Definition { name: &new.name, on_failure, steps })
    });
    definition.map_err(|error| Error::Invalid(format!("the pipeline cannot be written as JSON: {error}")))
}

fn step(NewStep { name, job, after }: &NewStep) -> Result<StepDefinition<'_>, serde_json::Error> {
    let metadata = job.metadata.as_ref().and_then(|json| json.as_deref().ok());
    let job = JobDefinition {
        kind: &job.kind,
        payload: serde_json::from_str(job.payload.as_deref().unwrap_or("{}"))?,
        queue: &job.queue,
        run_at_us: job.run_at.map(micros),
        delay_ms: millis(job.delay),
        priority: job.priority,
        max_attempts: job.max_attempts,
        timeout_ms: job.timeout.map(millis),
        metadata: metadata.map(serde_json::from_str).transpose()?,
        lane: job.lane.as_ref().map(|lane| serde_json::from_str(lane.as_json())).transpose()?,
        lane_pass: Some(true).filter(|_| job.lane_pass),
    };
    Ok(StepDefinition { name, after, job })
}
