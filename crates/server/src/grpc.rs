//! The gRPC API.

pub(crate) mod job_service;
pub(crate) mod messages;
pub(crate) mod worker_service;
