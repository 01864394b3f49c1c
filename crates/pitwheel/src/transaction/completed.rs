//! The result of a completion in your own transaction.

use crate::job::claim::Settled;
use crate::job::recurrence::NextRun;

/// The result of a completion in your own transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completed {
    /// Whether it was written. `Lost`: roll back.
    pub settled: Settled,
    /// For a run of a recurring job: when the next one is due, as it was written. `None` if the recurring job was deleted, or a
    /// node is yet to plan it. If it was disabled meanwhile, this is the time that is kept.
    pub next_run: Option<NextRun>,
}

impl Completed {
    pub(super) const LOST: Completed = Completed { settled: Settled::Lost, next_run: None };

    pub(super) fn written(next_run: Option<NextRun>) -> Completed {
        Completed { settled: Settled::Written, next_run }
    }
}
