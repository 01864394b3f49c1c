//! The HTTP API.

mod admin;
mod events;
mod extract;
mod jobs;
mod queues;
pub(crate) mod responses;
pub(crate) mod router;
mod workers;
