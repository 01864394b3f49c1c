//! What a node shows of itself: metrics, traces, and events for watchers.

pub(crate) mod database_check;
pub(crate) mod health;
pub(crate) mod metrics;
mod queue_gauges;
mod shared;
pub(crate) mod traces;
pub(crate) mod watch;
