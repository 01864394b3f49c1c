//! Jobs that were sent to workers of this node and have not ended yet.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use pitwheel::engine::{Claimed, Ctid, Ending, SettleResult, Settlement};
use pitwheel::{Claim, History, TraceContext, metrics};

use crate::dispatch::source::Source;
use crate::observe::traces;

#[derive(Default)]
pub(crate) struct Outstanding {
    /// By job and fence: a job that was settled through another node may be sent again before this node knows. Not by holder,
    /// because a worker need not name itself in its report.
    jobs: HashMap<(i64, i64), SentJob>,
    /// By hold id.
    holds: HashMap<i64, HoldCount>,
    /// Holds of which every job has ended: the next write deletes them.
    emptied: Vec<i64>,
}

/// A job that a worker of this node has.
pub(crate) struct SentJob {
    pub(crate) worker: i64,
    /// Where its row was when it was claimed.
    pub(crate) ctid: Ctid,
    hold: i64,
    queue: Arc<str>,
    kind: Arc<str>,
    sent_at: Instant,
    trace: Option<TraceContext>,
}

struct HoldCount {
    worker: i64,
    jobs: usize,
}

impl Outstanding {
    pub(crate) fn add(&mut self, job: &Claimed, sent_at: Instant) {
        let sent = SentJob {
            worker: job.claim.holder,
            ctid: job.ctid,
            hold: job.hold,
            queue: job.queue.clone(),
            kind: job.kind.clone(),
            sent_at,
            trace: TraceContext::of(job.metadata.as_deref()),
        };
        self.holds.entry(job.hold).or_insert(HoldCount { worker: job.claim.holder, jobs: 0 }).jobs += 1;
        self.jobs.insert((job.claim.id, job.claim.fence), sent);
    }

    pub(crate) fn get(&self, claim: Claim) -> Option<&SentJob> {
        let sent = self.jobs.get(&(claim.id, claim.fence))?;
        [0, sent.worker].contains(&claim.holder).then_some(sent)
    }

    /// The claim has ended. Returns the worker that had it, if it was sent from here.
    pub(crate) fn remove(&mut self, claim: Claim) -> Option<i64> {
        self.get(claim)?;
        let SentJob { worker, hold, .. } = self.jobs.remove(&(claim.id, claim.fence))?;
        if let Some(count) = self.holds.get_mut(&hold) {
            count.jobs -= 1;
            if count.jobs == 0 {
                self.holds.remove(&hold);
                self.emptied.push(hold);
            }
        }
        Some(worker)
    }

    /// The worker's stream is closed. What it holds stays its own, in the database.
    pub(crate) fn forget_worker(&mut self, worker: i64) {
        self.jobs.retain(|_, job| job.worker != worker);
        self.holds.retain(|_, hold| hold.worker != worker);
    }

    pub(crate) fn claims_of(&self, workers: &[i64]) -> Vec<Claim> {
        let sent = self.jobs.iter().filter(|(_, job)| workers.contains(&job.worker));
        sent.map(|(&(id, fence), job)| Claim { id, fence, holder: job.worker }).collect()
    }

    pub(crate) fn holds_of(&self, worker: i64) -> Vec<i64> {
        self.holds.iter().filter(|(_, hold)| hold.worker == worker).map(|(id, _)| *id).collect()
    }

    /// The database has these holds, and nothing in them.
    pub(crate) fn add_emptied(&mut self, holds: impl Iterator<Item = i64>) {
        self.emptied.extend(holds);
    }

    /// Holds to delete with the next write.
    pub(crate) fn take_emptied(&mut self) -> Vec<i64> {
        std::mem::take(&mut self.emptied)
    }

    /// Records metrics and spans of the attempts that were sent from here and ended. A job that its handler settled in a
    /// transaction of its own is done, and not lost if nothing is known of it.
    pub(crate) fn record(&self, endings: &[Settlement], sources: &[Source], results: &[SettleResult]) {
        let mut lost = 0;
        for ((Settlement { claim, ending }, source), result) in endings.iter().zip(sources).zip(results) {
            match (result, source) {
                (SettleResult::Written, _) => self.record_ended(*claim, ending),
                (SettleResult::Already, Source::Handler) => {
                    self.record_ended(*claim, &Ending::done(History::All, None));
                }
                (SettleResult::Lost, Source::Node | Source::Worker) => lost += 1,
                _ => {}
            }
        }
        metrics::lost(lost);
    }

    fn record_ended(&self, claim: Claim, ending: &Ending) {
        let Some(job) = self.get(claim) else { return };
        let took = job.sent_at.elapsed();
        metrics::ended(&job.queue, &job.kind, ending, took);
        if let Some(trace) = &job.trace {
            let ids = (claim.id, &*job.queue, &*job.kind);
            traces::processed(trace, ids, SystemTime::now() - took, has_error(ending));
        }
    }
}

fn has_error(ending: &Ending) -> bool {
    matches!(
        ending,
        Ending::Dead { .. } | Ending::Cancelled { .. } | Ending::Retry { .. } | Ending::Crash { .. }
    )
}
