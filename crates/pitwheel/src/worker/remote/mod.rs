//! A worker without a database: jobs arrive on streams from a server, results go back in batches.
//!
//! Every stream is a worker of its own to the server. When one breaks, another is opened. Jobs of the old stream go on, and
//! heartbeats name them until they are reported.

mod core;
mod heartbeat;
mod message;
mod progress;
mod report;
mod run;
pub(crate) mod server;
mod slots;
mod stream;

pub(crate) use self::core::Remote;
