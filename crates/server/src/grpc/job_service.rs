//! The service for programs that enqueue jobs and query them.

use pitwheel::{Cancelled, NewJob, Pitwheel};
use pitwheel_proto::v1;
use pitwheel_proto::v1::job_service_server::JobService;
use tonic::{Request, Response, Status};

use crate::auth::caller::{Caller, Permission};
use crate::grpc::messages;
use crate::grpc::status::status;
use crate::limits;
use crate::observe::traces;

pub(crate) struct Jobs {
    pitwheel: Pitwheel,
}

impl Jobs {
    pub(crate) fn new(pitwheel: Pitwheel) -> Jobs {
        Jobs { pitwheel }
    }
}

#[tonic::async_trait]
impl JobService for Jobs {
    async fn enqueue(
        &self,
        request: Request<v1::EnqueueRequest>,
    ) -> Result<Response<v1::EnqueueResponse>, Status> {
        Caller::of(&request)?.check(Permission::Enqueue)?;
        let trace = traces::context_of(request.metadata().as_ref());
        let jobs = request.into_inner().jobs;
        limits::enqueue(jobs.len()).map_err(status)?;
        let jobs = jobs.into_iter().map(messages::new_job).collect::<Result<Vec<NewJob>, _>>();
        let enqueued = traces::enqueue(&self.pitwheel, jobs.map_err(status)?, trace).await.map_err(status)?;
        let jobs = enqueued.into_iter().map(|job| v1::Enqueued { job_id: job.id, is_new: job.is_new });
        Ok(Response::new(v1::EnqueueResponse { jobs: jobs.collect() }))
    }

    async fn get_job(
        &self,
        request: Request<v1::GetJobRequest>,
    ) -> Result<Response<v1::GetJobResponse>, Status> {
        let caller = Caller::of(&request)?;
        caller.check(Permission::ViewJob)?;
        let detail = self.pitwheel.job(request.into_inner().job_id).await.map_err(status)?;
        let job = messages::job(detail, caller.needs_redaction());
        Ok(Response::new(v1::GetJobResponse { job: Some(job) }))
    }

    async fn cancel_job(
        &self,
        request: Request<v1::CancelJobRequest>,
    ) -> Result<Response<v1::CancelJobResponse>, Status> {
        let caller = Caller::of(&request)?;
        caller.check(Permission::Operate)?;
        let cancelled = self.pitwheel.acting_as(caller.name()).cancel(request.into_inner().job_id).await;
        let at_once = cancelled.map_err(status)? == Cancelled::AtOnce;
        Ok(Response::new(v1::CancelJobResponse { at_once }))
    }
}
