//! Data ingestion on Pitwheel: files become versions of data, and one version of a lane is current.
//!
//! It is an ordinary program: it uses the public interface of `pitwheel` and `pitwheel-server`, and has a schema of its own.

#![warn(missing_docs)]

mod csv;
mod error;
pub mod http;
mod ingest;
pub mod kinds;
mod lane;
mod metrics;
pub mod rejected;
mod store;
mod uploads;
mod worker;

pub use csv::{CsvError, CsvOptions};
pub use error::Error;
pub use ingest::{Ingest, IngestJob, PAGE_MAX};
pub use lane::{Lane, LaneFilter, Method, Target};
pub use store::{CurrentVersion, LaneState, RejectedRow, Source, SyncJob, Version};
pub use uploads::{Upload, Uploads};
pub use worker::{WorkerOptions, run};
