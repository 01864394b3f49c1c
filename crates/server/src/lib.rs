//! `pitwheel serve`: jobs for workers in any language, over gRPC, and everything else over HTTP, on one port.
//!
//! A node claims for all the streams that are open on it and sends each what it has room for. What a worker
//! holds is its own, in the database, and not the node's: heartbeats and reports may go to any node, and a node that dies takes
//! no job with it.

#![warn(missing_docs)]

mod auth;
mod dispatch;
mod error;
mod grpc;
mod http;
mod limits;
mod listen;
mod observe;
mod options;
mod problem;
mod serve;
pub mod views;

pub use crate::error::Error;
pub use crate::listen::tls::Tls;
pub use crate::options::Options;
pub use crate::serve::run;
