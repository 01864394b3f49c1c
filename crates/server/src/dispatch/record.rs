//! What is recorded of an attempt when it has ended: metrics, and a span if the job belongs to a trace.
//!
//! Over all nodes an attempt is counted once at most. The node that writes its ending counts it, because only one write succeeds. A job that
//! its handler completed in a transaction of its own is counted by the node that sent it to its worker, when it learns that the worker has
//! reported it: from the report, or from the hint of the node that got the report.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use pitwheel::engine::{AttemptInfo, Claimed, Ending};
use pitwheel::{Claim, History, TraceContext, metrics};

use crate::observe::traces;

/// How many attempts are remembered after their entry was removed: as many as the largest stream has slots, in about 2 MB.
const REMEMBERED_MAX: usize = 10_000;

#[derive(Clone)]
pub(crate) struct AttemptRecord {
    queue: Arc<str>,
    kind: Arc<str>,
    trace: Option<TraceContext>,
}

impl AttemptRecord {
    pub(crate) fn of(job: &Claimed) -> AttemptRecord {
        let trace = TraceContext::of(job.metadata.as_deref());
        AttemptRecord { queue: job.queue.clone(), kind: job.kind.clone(), trace }
    }

    /// Records that the attempt has ended, `took` after its begin.
    pub(crate) fn ended(&self, id: i64, ending: &Ending, took: Duration) {
        metrics::ended(&self.queue, &self.kind, ending, took);
        if let Some(trace) = &self.trace {
            let ids = (id, &*self.queue, &*self.kind);
            traces::processed(trace, ids, SystemTime::now() - took, has_error(ending));
        }
    }
}

/// Records the ending of an attempt of which only the row of its job is known. It has no span.
pub(crate) fn ended_elsewhere(attempt: &AttemptInfo, ending: &Ending) {
    metrics::ended(&attempt.queue, &attempt.kind, ending, attempt.age);
}

/// The ending of a job that its handler has completed itself.
pub(crate) fn completed() -> Ending {
    Ending::done(History::All, None)
}

fn has_error(ending: &Ending) -> bool {
    matches!(
        ending,
        Ending::Dead { .. } | Ending::Cancelled { .. } | Ending::Retry { .. } | Ending::Crash { .. }
    )
}

/// Attempts whose entry was removed before this node learned how they ended: a comparison found that they are no longer held, or their
/// stream was closed. Their reports may still come.
#[derive(Default)]
pub(crate) struct Unreported {
    /// The worker, when it began, and what to record; by job and fence.
    attempts: HashMap<(i64, i64), (i64, Instant, AttemptRecord)>,
    /// Oldest first. Some may have been taken.
    order: VecDeque<(i64, i64)>,
}

impl Unreported {
    pub(crate) fn add(&mut self, claim: Claim, since: Instant, record: AttemptRecord) {
        let key = (claim.id, claim.fence);
        if self.attempts.insert(key, (claim.holder, since, record)).is_none() {
            self.order.push_back(key);
        }
        if self.order.len() > REMEMBERED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.attempts.remove(&oldest);
        }
    }

    /// The attempt of a claim, once. A holder of 0 is not known, and then not compared.
    pub(crate) fn take(&mut self, claim: Claim) -> Option<(Instant, AttemptRecord)> {
        let key = (claim.id, claim.fence);
        self.attempts.get(&key).filter(|(worker, ..)| [0, *worker].contains(&claim.holder))?;
        self.attempts.remove(&key).map(|(_, since, record)| (since, record))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_is_taken_once_and_by_its_worker_only() {
        let record = AttemptRecord { queue: "q".into(), kind: "k".into(), trace: None };
        let mut unreported = Unreported::default();
        let claim = |id: usize, holder| Claim { id: id as i64, fence: 1, holder };
        (0..=REMEMBERED_MAX).for_each(|id| unreported.add(claim(id, 7), Instant::now(), record.clone()));
        assert!(unreported.take(claim(0, 7)).is_none(), "the oldest is forgotten");
        assert!(unreported.take(claim(1, 8)).is_none(), "another worker has its fence");
        assert!(unreported.take(claim(1, 7)).is_some() && unreported.take(claim(1, 0)).is_none());
        assert!(unreported.take(claim(2, 0)).is_some());
    }
}
