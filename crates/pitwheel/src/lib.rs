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

mod client;
pub mod engine;
mod error;
mod job;
pub mod metrics;
mod operate;
mod postgres;
pub mod transaction;
mod worker;

pub use client::{Options, Pitwheel};
pub use engine::enqueue::Enqueued;
pub use engine::token::Role;
pub use error::{DatabaseError, Error};
pub use job::cadence::Cadence;
pub use job::claim::{Claim, ClaimRefusal, Settled};
pub use job::ending::{Completion, Verdict};
pub use job::lane::Lane;
pub use job::misfire::Misfire;
pub use job::new_event::NewEvent;
pub use job::new_job::{History, Job, NewJob};
pub use job::new_pipeline::NewPipeline;
pub use job::new_recurring::NewRecurring;
pub use job::on_failure::OnFailure;
pub use job::payload::PayloadError;
pub use job::recurrence::{NextRun, Recurrence};
pub use job::state::State;
pub use job::step::{CurrentStep, ParentStep, StepState};
pub use job::trace::TraceContext;
pub use operate::audit::AuditEntry;
pub use operate::change::{Cancelled, Change, Changed};
pub use operate::jobs::{Filter, JobDetail, JobPage, JobSummary};
pub use operate::kinds::KindSummary;
pub use operate::lanes::{CurrentJob, LaneFilter};
pub use operate::outbox::{Outbox, Replay, Unpark};
pub use operate::outbox_views::{EventTrace, OutboxStatus, ParkedEntity, RelaySummary, ShardSummary};
pub use operate::pipeline::{Pipeline, PipelineDetail, PipelineFilter, PipelinePage, PipelineState, Step};
pub use operate::pipelines::Pipelines;
pub use operate::queues::{QUEUES_LISTED_MAX, QueueSummary};
pub use operate::recurring::{
    Created, RecurringDetail, RecurringFilter, RecurringJob, RecurringPage, RunNow,
};
pub use operate::recurring_jobs::RecurringJobs;
pub use operate::tokens::Token;
pub use operate::workers::{WorkerCommand, WorkerSummary};
pub use postgres::MigrationStatus;
pub use worker::{Context, Stats, Worker};
