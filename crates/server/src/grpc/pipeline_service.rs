//! Pipelines over gRPC.

use pitwheel::{Error, NewPipeline, PipelineDetail, Pipelines, Pitwheel, Step};
use pitwheel_proto::v1;
use pitwheel_proto::v1::pipeline_service_server::PipelineService;
use tonic::{Request, Response, Status};

use crate::auth::caller::{Caller, Permission};
use crate::grpc::messages::new_job;
use crate::grpc::status::status;

pub(crate) struct PipelineCalls {
    pitwheel: Pitwheel,
}

impl PipelineCalls {
    pub(crate) fn new(pitwheel: Pitwheel) -> PipelineCalls {
        PipelineCalls { pitwheel }
    }

    /// The pipelines, for a caller who may change them.
    fn operated_by(&self, caller: &Caller) -> Result<Pipelines, Status> {
        caller.check(Permission::Operate)?;
        Ok(self.pitwheel.acting_as(caller.name()).pipelines())
    }
}

#[tonic::async_trait]
impl PipelineService for PipelineCalls {
    async fn create_pipeline(
        &self,
        request: Request<v1::CreatePipelineRequest>,
    ) -> Result<Response<v1::CreatePipelineResponse>, Status> {
        Caller::of(&request)?.check(Permission::Enqueue)?;
        let new = new(request.into_inner()).map_err(status)?;
        let pipeline_id = self.pitwheel.pipelines().create(new).await.map_err(status)?;
        Ok(Response::new(v1::CreatePipelineResponse { pipeline_id }))
    }

    async fn get_pipeline(
        &self,
        request: Request<v1::GetPipelineRequest>,
    ) -> Result<Response<v1::GetPipelineResponse>, Status> {
        let caller = Caller::of(&request)?;
        caller.check(Permission::ViewJob)?;
        let detail = self.pitwheel.pipelines().get(request.into_inner().pipeline_id).await.map_err(status)?;
        Ok(Response::new(v1::GetPipelineResponse {
            pipeline: Some(message(detail, caller.needs_redaction())),
        }))
    }

    async fn cancel_pipeline(
        &self,
        request: Request<v1::CancelPipelineRequest>,
    ) -> Result<Response<v1::CancelPipelineResponse>, Status> {
        let pipelines = self.operated_by(&Caller::of(&request)?)?;
        let changed = pipelines.cancel(request.into_inner().pipeline_id).await.map_err(status)?;
        Ok(Response::new(v1::CancelPipelineResponse { changed }))
    }

    async fn retry_pipeline(
        &self,
        request: Request<v1::RetryPipelineRequest>,
    ) -> Result<Response<v1::RetryPipelineResponse>, Status> {
        let pipelines = self.operated_by(&Caller::of(&request)?)?;
        let changed = pipelines.retry(request.into_inner().pipeline_id).await.map_err(status)?;
        Ok(Response::new(v1::RetryPipelineResponse { changed }))
    }
}

/// A pipeline to create. The engine checks its steps.
fn new(request: v1::CreatePipelineRequest) -> Result<NewPipeline, Error> {
    let mut new = NewPipeline::new(request.name);
    if !request.on_failure.is_empty() {
        new = new.on_failure(request.on_failure.parse()?);
    }
    for v1::NewStep { name, job, after } in request.steps {
        let job = job.ok_or_else(|| Error::Invalid("a step has no `job`".into()))?;
        new = new.step(name, new_job(job)?).after(after);
    }
    Ok(new)
}

/// One pipeline. `redact` hides the results of steps whose kinds are redacted.
fn message(detail: PipelineDetail, redact: bool) -> v1::Pipeline {
    let pipeline = detail.summary;
    let step = |step: Step| {
        let hidden = step.redacted && redact;
        v1::Step {
            name: step.name,
            state: step.state.as_str().to_owned(),
            after: step.after,
            kind: step.kind,
            queue: step.queue,
            job_id: step.job_id,
            ended_at: step.ended_at.map(Into::into),
            result: step.result.filter(|_| !hidden),
            result_left_out: step.result_left_out && !hidden,
        }
    };
    v1::Pipeline {
        id: pipeline.id,
        name: pipeline.name,
        state: pipeline.state.as_str().to_owned(),
        on_failure: pipeline.on_failure.as_str().to_owned(),
        created_at: Some(pipeline.created_at.into()),
        cancelled_at: pipeline.cancelled_at.map(Into::into),
        finished_at: pipeline.finished_at.map(Into::into),
        steps: detail.steps.into_iter().map(step).collect(),
    }
}
