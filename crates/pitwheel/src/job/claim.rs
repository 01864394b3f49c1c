//! A claim: the right to run a job and to write its ending.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::job::recurrence::Recurrence;
use crate::postgres::Ctid;

/// The proof of a claim: a job, its fence, and who claimed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Claim {
    /// The id of the job.
    pub id: i64,
    /// A number that grows at each claim of the job and never goes back. Every write after the claim names it. Pass it to
    /// outside systems that can refuse lower numbers.
    pub fence: i64,
    /// The id of the worker that made the claim. A failover that loses a claim also loses its fence, which is then given again:
    /// the two claims differ in their holder. 0: not known, because a remote worker did not name it; writes then compare only
    /// the id and the fence.
    pub holder: i64,
}

impl Claim {
    /// Whether this is the claim of a row with this id, fence and holder.
    pub(crate) fn is_of(self, row: Claim) -> bool {
        (self.id, self.fence) == (row.id, row.fence) && [0, row.holder].contains(&self.holder)
    }
}

/// The result of a write that named a fence.
#[must_use = "a lost claim means the job is no longer ours"]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// It was written.
    Written,
    /// The claim is gone: swept, claimed again, or settled before. Nothing was written.
    Lost,
}

/// Why a job could not be claimed by its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClaimRefusal {
    /// Another worker has it.
    Taken,
    /// It is done, dead or cancelled.
    Finished,
    /// It has no attempts left.
    OutOfAttempts,
    /// Another job of its lane is live and comes first.
    LaneBusy,
    /// Its queue is paused.
    Paused,
    /// The worker has no handler for its kind.
    NoHandler,
}

impl std::fmt::Display for ClaimRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            ClaimRefusal::Taken => "another worker has it",
            ClaimRefusal::Finished => "it is finished",
            ClaimRefusal::OutOfAttempts => "it has no attempts left",
            ClaimRefusal::LaneBusy => "another job of its lane comes first",
            ClaimRefusal::Paused => "its queue is paused",
            ClaimRefusal::NoHandler => "the worker has no handler for its kind",
        })
    }
}

/// The free slots for a queue.
#[derive(Debug, Clone)]
pub struct QueueSlots {
    /// The name of the queue.
    pub queue: String,
    /// How many jobs may be claimed from it.
    pub slots: usize,
}

/// A claimed job, with what is needed to run it.
#[derive(Debug)]
pub struct Claimed {
    /// The proof of the claim.
    pub claim: Claim,
    /// Where its row is after the claim.
    pub ctid: Ctid,
    /// The id of the hold: the record of what one claim took for one worker.
    pub hold: i64,
    /// The number of this attempt, counted from 1.
    pub attempt: u32,
    /// The maximum number of attempts.
    pub max_attempts: u32,
    /// How long the attempt may take; `None`: without limit.
    pub timeout: Option<Duration>,
    /// The time at which it was due.
    pub run_at: SystemTime,
    /// -9 to 9, higher first.
    pub priority: i16,
    /// The queue it came from.
    pub queue: Arc<str>,
    /// Its kind, which selects the handler.
    pub kind: Arc<str>,
    /// Its key, if it has one.
    pub key: Option<String>,
    /// The name of its lane, as JSON text.
    pub lane: Option<String>,
    /// Its payload, as JSON text.
    pub payload: String,
    /// Its metadata, as JSON text.
    pub metadata: Option<String>,
    /// The recurring job that it is a run of.
    pub recurrence: Option<Box<Recurrence>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_that_is_not_known_is_not_compared() {
        let row = Claim { id: 1, fence: 2, holder: 3 };
        assert!(row.is_of(row) && Claim { holder: 0, ..row }.is_of(row));
        for other in [Claim { id: 9, ..row }, Claim { fence: 9, ..row }, Claim { holder: 9, ..row }] {
            assert!(!other.is_of(row), "{other:?}");
        }
    }
}
