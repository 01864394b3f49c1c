//! The worker: claims what it has slots for, runs handlers, settles in batches, renews its lease.
//!
//! A worker at the database is four loops that share a [`Core`](core::Core): the claimer starts jobs, the settler writes their
//! endings, the heartbeat renews the lease and passes on progress and cancels, and maintenance sweeps and prunes. Each of
//! them survives a database that is not reachable. The lease is renewed on a thread of its own, which handlers cannot block. A
//! [remote] worker does the same through a server.

mod alive;
mod backend;
mod builder;
pub(crate) mod context;
mod core;
mod handler;
mod heartbeat;
mod later;
mod own_thread;
mod progress;
#[cfg(feature = "remote")]
mod remote;
mod run;
mod settler;
mod sink;
mod slots;
mod stats;

pub use self::builder::Worker;
pub use self::context::Context;
pub use self::stats::Stats;
