//! Metrics, traces and watchers.

pub(crate) mod metrics;
pub(crate) mod traces;
pub(crate) mod watch;
