//! The Pitwheel server: gRPC for workers in any language, and an HTTP API for programs and people, on one port.
//!
//! A node claims jobs for all streams that are open on it and sends each as many as it has free slots. A claim belongs to
//! the worker, in the database, and not to the node: heartbeats and results may go to any node, and a node that dies
//! loses no job.

#![warn(missing_docs)]

mod auth;
mod background;
mod dispatch;
mod error;
mod grpc;
mod http;
mod limits;
mod listen;
mod observe;
mod options;
pub mod outbox_views;
pub mod pipeline_views;
mod problem;
mod readiness;
pub mod recurring_views;
mod schemas;
mod serve;
pub mod views;

pub use crate::auth::caller::Caller;
pub use crate::error::Error;
pub use crate::http::extract::{Body, Path, Query};
pub use crate::http::responses::ErrorResponses;
pub use crate::listen::tls::Tls;
pub use crate::options::Options;
pub use crate::problem::Problem;
pub use crate::readiness::{NotServing, Readiness};
pub use crate::serve::Server;
