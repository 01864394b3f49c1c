//! The gRPC API: `WorkerService` for programs that run jobs, `JobService` for programs that enqueue them.

pub(crate) mod job_service;
mod job_stream;
mod messages;
mod results;
mod status;
pub(crate) mod worker_service;
