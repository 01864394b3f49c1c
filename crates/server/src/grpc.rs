//! The gRPC API: `WorkerService` for programs that run jobs, `JobService` for programs that enqueue them, `RecurringService` for
//! recurring jobs, `PipelineService` for pipelines.

pub(crate) mod job_service;
mod job_stream;
mod messages;
pub(crate) mod pipeline_service;
pub(crate) mod recurring_service;
mod results;
mod status;
pub(crate) mod worker_service;
