//! Values and decisions: what a job is, what a claim is, how an attempt ends. No SQL, no tokio.

pub(crate) mod backoff;
pub(crate) mod cadence;
pub(crate) mod claim;
pub(crate) mod cron;
pub(crate) mod ending;
pub(crate) mod followers;
pub(crate) mod lane;
pub mod limits;
pub(crate) mod misfire;
pub(crate) mod new_event;
pub(crate) mod new_job;
pub(crate) mod new_pipeline;
pub(crate) mod new_recurring;
pub(crate) mod on_failure;
pub(crate) mod pace;
pub(crate) mod payload;
pub(crate) mod recurrence;
pub(crate) mod run_ending;
pub(crate) mod state;
pub(crate) mod step;
pub(crate) mod trace;
