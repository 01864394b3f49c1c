//! The door for programs that enqueue jobs and ask about them.

use pitwheel::{Cancelled, NewJob, Pitwheel};
use pitwheel_proto::v1;
use pitwheel_proto::v1::job_service_server::JobService;
use tonic::{Request, Response, Status};

use crate::auth::access::{Need, caller, trace_of};
use crate::grpc::messages;
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
        caller(&request)?.needs(Need::Enqueue)?;
        let trace = trace_of(request.metadata().as_ref());
        let jobs = request.into_inner().jobs;
        limits::enqueue(jobs.len())?;
        let jobs = jobs.into_iter().map(messages::new_job).collect::<Result<Vec<NewJob>, _>>()?;
        let enqueued =
            traces::enqueue(&self.pitwheel, jobs, trace).await.map_err(|error| messages::status(&error))?;
        let jobs = enqueued.into_iter().map(|job| v1::Enqueued { job_id: job.id, is_new: job.is_new });
        Ok(Response::new(v1::EnqueueResponse { jobs: jobs.collect() }))
    }

    async fn get_job(
        &self,
        request: Request<v1::GetJobRequest>,
    ) -> Result<Response<v1::GetJobResponse>, Status> {
        let caller = caller(&request)?;
        caller.needs(Need::SeeJob)?;
        let found = self.pitwheel.job(request.into_inner().job_id).await;
        let job = messages::job(found.map_err(|error| messages::status(&error))?, caller.only_looks());
        Ok(Response::new(v1::GetJobResponse { job: Some(job) }))
    }

    async fn cancel_job(
        &self,
        request: Request<v1::CancelJobRequest>,
    ) -> Result<Response<v1::CancelJobResponse>, Status> {
        let caller = caller(&request)?;
        caller.needs(Need::Operate)?;
        let cancelled = self.pitwheel.acting_as(&caller.name).cancel(request.into_inner().job_id).await;
        let at_once = cancelled.map_err(|error| messages::status(&error))? == Cancelled::AtOnce;
        Ok(Response::new(v1::CancelJobResponse { at_once }))
    }
}
