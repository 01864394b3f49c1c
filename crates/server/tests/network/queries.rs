//! Leases and queries that the scenarios share.

use std::time::Duration;

pub(crate) const LEASE: Duration = Duration::from_secs(30);
/// For tests in which a worker is to be declared dead.
pub(crate) const SHORT_LEASE: Duration = Duration::from_secs(3);
/// For tests in which no worker may be declared dead: no sweep gives back what the node itself loses.
pub(crate) const LONG_LEASE: Duration = Duration::from_secs(600);

pub(crate) const HELD: &str = "select count(*) from pitwheel.job where holder is not null";
pub(crate) const DONE: &str = "select count(*) from pitwheel.job_history where state = 'done'";
/// A job that was settled twice is in the history twice.
pub(crate) const SETTLED_TWICE: &str = "select count(*) - count(distinct id) from pitwheel.job_history";
pub(crate) const DEAD: &str = "select count(*) from pitwheel.worker where dead_at is not null";
