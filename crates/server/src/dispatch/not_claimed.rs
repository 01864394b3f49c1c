//! Why a worker does not get the job that was asked for.

use std::fmt;

use pitwheel::ClaimRefusal;

/// Why a worker does not get a job. Nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotClaimed {
    /// The worker has no stream on this node.
    NoStream,
    /// The worker has no free slot, or gets no more jobs.
    NoSlot,
    /// The job cannot be claimed.
    Refused(ClaimRefusal),
}

impl fmt::Display for NotClaimed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotClaimed::NoStream => f.write_str("the worker has no stream on this node: ask its own node"),
            NotClaimed::NoSlot => f.write_str("the worker has no free slot, or is quiet"),
            NotClaimed::Refused(refusal) => refusal.fmt(f),
        }
    }
}
