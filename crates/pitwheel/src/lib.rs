//! Pitwheel turns the Postgres you already run into your work engine.
//!
//! A job is a serde type with a kind. You enqueue it, alone or inside your own transaction; a [`Worker`] claims it, runs your
//! handler, and settles it. Jobs run at least once and are settled once: a worker that lost its claim cannot write over the
//! one that took the job over.
//!
//! ```no_run
//! use pitwheel::{Context, Job, Pitwheel, Worker};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Greet {
//!     name: String,
//! }
//!
//! impl Job for Greet {
//!     const KIND: &str = "greet";
//! }
//!
//! async fn greet(job: Greet, _: Context) -> Result<(), std::io::Error> {
//!     println!("hello, {}", job.name);
//!     Ok(())
//! }
//!
//! # async fn example() -> Result<(), pitwheel::Error> {
//! let pitwheel = Pitwheel::connect("postgres://localhost/app").await?;
//! pitwheel.migrate().await?;
//! pitwheel.enqueue(&Greet { name: "Ada".into() }).await?;
//!
//! Worker::new(&pitwheel)
//!     .queue("default", 20)
//!     .handle(greet)
//!     .run(async { tokio::signal::ctrl_c().await.unwrap_or_default() })
//!     .await?;
//! # Ok(())
//! # }
//! ```
#![warn(missing_docs)]

pub mod adapter;
mod backend;
mod backoff;
mod claim;
mod claimer;
mod client;
mod control;
mod ctid;
mod cursor;
mod db;
mod enqueue;
mod error;
mod handler;
mod hint;
mod inspect;
mod job;
mod lease;
pub mod metrics;
mod migrate;
mod payload;
mod settle;
mod sweep;
mod token;
mod trace;
mod worker;

pub use client::{Options, Pitwheel};
pub use control::{Cancelled, Change, Changed, WorkerCommand};
pub use enqueue::Enqueued;
pub use error::{DatabaseError, Error};
pub use handler::Context;
pub use inspect::{
    AuditEntry, Filter, JobDetail, JobPage, JobSummary, KindSummary, QueueSummary, State, WorkerSummary,
};
pub use job::{History, Job, NewJob};
pub use migrate::MigrationStatus;
pub use payload::PayloadError;
pub use settle::{Claim, Settled, Verdict};
pub use token::{Role, Token};
pub use trace::TraceContext;
pub use worker::{Stats, Worker};

/// The statements and steps of the engine, for tests that drive them by hand. Not part of the public promise.
#[doc(hidden)]
pub mod engine {
    pub use crate::claim::{
        CLAIM_MAX, Claimed, LookedBack, QueueSlots, claim, claim_alone, claim_for_workers, look_back,
        release_unknown,
    };
    pub use crate::claimer::{ClaimSink, Reserved, RetryDelay, run_claimer};
    pub use crate::ctid::Ctid;
    pub use crate::cursor::{Bounds, Cursor, Position};
    pub use crate::db::{Pool, Session, Sql, pool_of};
    pub use crate::hint::{HintListener, OnDue, listen};
    pub use crate::inspect::{InFlight, WorkerCount, in_flight, worker_counts};
    pub use crate::job::check_name;
    pub use crate::lease::{
        AttemptInfo, HeartbeatReply, Hold, Registration, Renewed, alive_workers, attempts, cancel_requests,
        claims_of_token, heartbeat, held, progress, register, renew, retire, workers_of_token,
    };
    pub use crate::migrate::{LOCK as MIGRATION_LOCK, MIGRATIONS};
    pub use crate::settle::{Attempt, Cause, Ending, Failure, Outcome, Settlement, decide, settle};
    pub use crate::sweep::{Swept, settle_abandoned, sweep};
    pub use crate::token::{TokenHash, hash, token_hashes};
}
