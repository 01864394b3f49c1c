//! The routes of the ingestion, under `/api/v1/ingest`.

mod jobs;
mod lanes;
mod problem;
mod rejected;
mod router;
mod syncs;
mod uploads;
mod versions;
pub mod views;

pub use self::router::{STREAMED_PREFIX, routes};
