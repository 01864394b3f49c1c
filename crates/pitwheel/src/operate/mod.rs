//! What people do and see: lists, changes, pauses, commands to workers, tokens, the audit log.
//!
//! Lists never read a payload, and every count has a limit. Every statement that changes something writes the change and who
//! made it into the audit log.

pub(crate) mod audit;
pub(crate) mod change;
pub(crate) mod jobs;
pub(crate) mod kinds;
pub(crate) mod lanes;
pub(crate) mod outbox;
pub(crate) mod outbox_views;
mod page;
pub(crate) mod pipeline;
pub(crate) mod pipeline_definition;
pub(crate) mod pipelines;
pub(crate) mod queues;
pub(crate) mod recover;
pub(crate) mod recurring;
pub(crate) mod recurring_columns;
pub(crate) mod recurring_jobs;
pub(crate) mod tokens;
mod unpark;
pub(crate) mod workers;
