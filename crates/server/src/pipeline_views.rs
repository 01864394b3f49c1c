//! Pipelines as JSON, for the HTTP API and for the commands `pitwheel pipelines`.
//!
//! The field names are stable.

use std::collections::BTreeMap;

use pitwheel::engine::limits::{PARENTS_MAX, STEPS_MAX};
use pitwheel::{NewPipeline, Pipeline, PipelineDetail, Step};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::http::extract::limited;
use crate::http::jobs::JobToEnqueue;
use crate::problem::Problem;
use crate::schemas;
use crate::views::time;

/// A pipeline in a list.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct PipelineLine {
    /// The id.
    pub id: i64,
    /// The name, which need not be unique.
    #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,62}$")]
    pub name: String,
    /// `running`; or, when every step has ended, `done`, `failed` (some are dead, cancelled or skipped) or `cancelled`.
    #[schema(value_type = schemas::PipelineState, example = "running")]
    pub state: &'static str,
    /// What becomes of the steps after one that is dead or was cancelled: they are skipped (`stop`) or run (`go_on`).
    #[schema(value_type = schemas::OnFailure, example = "stop")]
    pub on_failure: &'static str,
    /// The number of its steps.
    pub step_count: u32,
    /// How many of them have ended, in any way.
    pub ended: u32,
    /// How many of them are dead or cancelled.
    pub failed: u32,
    /// When it was created.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// When it was cancelled; null: it was not.
    #[schema(format = DateTime)]
    pub cancelled_at: Option<String>,
    /// When its last step ended; null: it is running.
    #[schema(format = DateTime)]
    pub finished_at: Option<String>,
}

impl From<Pipeline> for PipelineLine {
    fn from(pipeline: Pipeline) -> PipelineLine {
        PipelineLine {
            id: pipeline.id,
            name: pipeline.name,
            state: pipeline.state.as_str(),
            on_failure: pipeline.on_failure.as_str(),
            step_count: pipeline.steps,
            ended: pipeline.ended,
            failed: pipeline.failed,
            created_at: time(pipeline.created_at),
            cancelled_at: pipeline.cancelled_at.map(time),
            finished_at: pipeline.finished_at.map(time),
        }
    }
}

/// One pipeline with its steps.
#[derive(Debug, Serialize, ToSchema)]
pub struct PipelineInFull {
    /// The fields that lists show too.
    #[serde(flatten)]
    pub summary: PipelineLine,
    /// How many steps are in each state. States without steps are left out.
    pub counts: BTreeMap<&'static str, usize>,
    /// Its steps in their order.
    pub steps: Vec<StepLine>,
}

/// A step of a pipeline.
#[derive(Debug, Serialize, ToSchema)]
pub struct StepLine {
    /// The name, unique in the pipeline.
    #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,62}$")]
    pub name: String,
    /// `waiting` for the steps that it comes after, `live` as a job that waits or runs, `done`, `dead`, `cancelled` or `skipped`.
    #[schema(value_type = schemas::StepState, example = "live")]
    pub state: &'static str,
    /// The steps that it comes after.
    #[schema(value_type = Vec<schemas::Name>, inline)]
    pub after: Vec<String>,
    /// The kind of its job.
    #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,62}$")]
    pub kind: String,
    /// The queue of its job.
    #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,62}$")]
    pub queue: String,
    /// Its last job; null: it had none yet.
    pub job_id: Option<i64>,
    /// When it ended, or was skipped; null: it has not.
    #[schema(format = DateTime)]
    pub ended_at: Option<String>,
    /// The result of its job; null: none, redacted, or left out.
    #[schema(value_type = Option<Value>)]
    pub result: Option<Box<RawValue>>,
    /// The result was left out, because the results up to this step have more than 1 MiB. Its job has it.
    pub result_left_out: bool,
}

impl StepLine {
    fn new(step: Step, redact: bool) -> StepLine {
        let hidden = step.redacted && redact;
        let shown = step.result.filter(|_| !hidden);
        StepLine {
            name: step.name,
            state: step.state.as_str(),
            after: step.after,
            kind: step.kind,
            queue: step.queue,
            job_id: step.job_id,
            ended_at: step.ended_at.map(time),
            // Postgres checked that it is JSON when it was stored.
            result: shown.and_then(|json| RawValue::from_string(json).ok()),
            result_left_out: step.result_left_out && !hidden,
        }
    }
}

impl PipelineInFull {
    /// `redact` hides the results of steps whose kinds are redacted.
    pub fn new(pipeline: PipelineDetail, redact: bool) -> PipelineInFull {
        PipelineInFull {
            counts: pipeline.counts(),
            steps: pipeline.steps.into_iter().map(|step| StepLine::new(step, redact)).collect(),
            summary: pipeline.summary.into(),
        }
    }
}

/// A pipeline to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PipelineToCreate {
    /// For people and lists; need not be unique.
    #[schema(example = "import", pattern = "^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,62}$")]
    name: String,
    /// What becomes of the steps after one that is dead or was cancelled: `stop` (default) skips them and all that comes after them,
    /// `go_on` runs them.
    #[schema(value_type = Option<schemas::OnFailure>)]
    on_failure: Option<String>,
    /// 1 to 1,000 steps.
    #[serde(deserialize_with = "limited::<_, _, STEPS_MAX>")]
    #[schema(min_items = 1, max_items = 1000)]
    steps: Vec<StepToCreate>,
}

/// A step to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct StepToCreate {
    /// Unique in the pipeline.
    #[schema(example = "load", pattern = "^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,62}$")]
    name: String,
    /// The steps that it comes after, at most 100. They stand before it in the list. Without any it runs at once.
    #[serde(default, deserialize_with = "limited::<_, _, PARENTS_MAX>")]
    #[schema(value_type = Vec<schemas::Name>, inline, max_items = 100)]
    after: Vec<String>,
    /// Its job, which has no `key`. A delay counts from the time at which the step could run.
    job: JobToEnqueue,
}

impl PipelineToCreate {
    /// The pipeline, which is not checked yet.
    ///
    /// # Errors
    /// A time, a span or the policy cannot be read.
    pub fn into_new(self) -> Result<NewPipeline, Problem> {
        let mut new = NewPipeline::new(self.name);
        if let Some(on_failure) = self.on_failure {
            new = new.on_failure(on_failure.parse()?);
        }
        for StepToCreate { name, after, job } in self.steps {
            new = new.step(name, job.into_job()?).after(after);
        }
        Ok(new)
    }
}
