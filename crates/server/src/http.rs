//! The HTTP API, one file for each resource. [`router`] puts them together.

mod audit;
mod claim;
mod events;
pub(crate) mod extract;
pub(crate) mod jobs;
mod kinds;
mod lanes;
mod openapi;
mod outbox;
mod own_routes;
mod pipelines;
mod probes;
mod queues;
pub(crate) mod recover;
mod recurring;
pub(crate) mod responses;
pub(crate) mod router;
mod tokens;
mod workers;
