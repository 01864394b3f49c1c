//! Jobs that were sent to workers of this node and have not ended yet.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use pitwheel::engine::{AttemptInfo, Claimed, Ctid, Ending, SettleResult, Settlement};
use pitwheel::{Claim, Recurrence, metrics};

use crate::dispatch::record::{AttemptRecord, Unreported, completed, ended_elsewhere};
use crate::dispatch::source::Source;

#[derive(Default)]
pub(crate) struct Outstanding {
    /// By job and fence: a job that was settled through another node may be sent again before this node knows. Not by holder,
    /// because a worker need not name itself in its report.
    jobs: HashMap<(i64, i64), ClaimedJob>,
    /// How many jobs each hold has, by hold id.
    holds: HashMap<i64, usize>,
    /// What each worker has, by worker id. A node may have thousands of workers: none is looked for among the jobs of all.
    workers: HashMap<i64, OfWorker>,
    /// Holds of which every job has ended: the next write deletes them.
    emptied: Vec<i64>,
    /// What is no longer among the jobs, and may still be reported.
    unreported: Unreported,
}

/// How far a job is that was claimed for a worker of this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It waits for a free slot, here or at the worker.
    Ahead,
    /// It was sent to the worker and has a slot.
    Running,
    /// The worker has reported its ending, which is not written yet.
    Reported,
}

/// A job that was claimed for a worker of this node.
pub(crate) struct ClaimedJob {
    pub(crate) worker: i64,
    /// Where its row was when it was claimed, if the fast path can settle it.
    pub(crate) ctid: Option<Ctid>,
    hold: i64,
    stage: Stage,
    /// When it came to that stage.
    since: Instant,
    record: AttemptRecord,
    /// Whether it is the head of a lane.
    pub(crate) in_lane: bool,
    /// The recurring job that it is a run of.
    pub(crate) recurrence: Option<Box<Recurrence>>,
}

#[cfg(test)]
impl ClaimedJob {
    pub(crate) fn has_slot(&self) -> bool {
        self.stage == Stage::Running
    }
}

#[derive(Default)]
struct OfWorker {
    /// By job and fence.
    jobs: HashSet<(i64, i64)>,
    holds: HashSet<i64>,
}

impl Outstanding {
    pub(crate) fn add(&mut self, job: &Claimed, now: Instant) {
        let claimed = ClaimedJob {
            worker: job.claim.holder,
            ctid: job.fast_ctid(),
            hold: job.hold,
            stage: Stage::Ahead,
            since: now,
            record: AttemptRecord::of(job),
            in_lane: job.lane.is_some(),
            recurrence: job.recurrence.clone(),
        };
        let key = (job.claim.id, job.claim.fence);
        let worker = self.workers.entry(job.claim.holder).or_default();
        worker.jobs.insert(key);
        worker.holds.insert(job.hold);
        *self.holds.entry(job.hold).or_default() += 1;
        self.jobs.insert(key, claimed);
    }

    pub(crate) fn get(&self, claim: Claim) -> Option<&ClaimedJob> {
        let job = self.jobs.get(&(claim.id, claim.fence))?;
        [0, job.worker].contains(&claim.holder).then_some(job)
    }

    /// The job takes a slot now. False: it was reported or has ended meanwhile.
    pub(crate) fn start(&mut self, claim: Claim, now: Instant) -> bool {
        let job = self.jobs.get_mut(&(claim.id, claim.fence));
        let ahead = job.filter(|job| job.worker == claim.holder && job.stage == Stage::Ahead);
        ahead.is_some_and(|job| {
            (job.stage, job.since) = (Stage::Running, now);
            true
        })
    }

    /// The worker has reported the ending of this claim. Returns the worker and how long the job had a slot, unless it has reported
    /// it before. `None` for the time: it is not known to have had one.
    pub(crate) fn report(&mut self, claim: Claim) -> Option<(i64, Option<Duration>)> {
        let stage = self.get(claim)?.stage;
        let job = self.jobs.get_mut(&(claim.id, claim.fence))?;
        job.stage = Stage::Reported;
        match stage {
            Stage::Ahead => Some((job.worker, None)),
            Stage::Running => Some((job.worker, Some(job.since.elapsed()))),
            Stage::Reported => None,
        }
    }

    /// The claim has ended. Returns the worker that had it and how far it was, if it was claimed here.
    pub(crate) fn remove(&mut self, claim: Claim) -> Option<(i64, Stage)> {
        self.unreported.take(claim);
        self.take(claim).map(|job| (job.worker, job.stage))
    }

    /// The same for a claim that has ended in a way that is not known here. What it was is kept, for its report.
    pub(crate) fn remove_unreported(&mut self, claim: Claim) -> Option<(i64, Stage)> {
        let job = self.take(claim)?;
        self.unreported.add(Claim { holder: job.worker, ..claim }, job.since, job.record);
        Some((job.worker, job.stage))
    }

    fn take(&mut self, claim: Claim) -> Option<ClaimedJob> {
        self.get(claim)?;
        let key = (claim.id, claim.fence);
        let job = self.jobs.remove(&key)?;
        let count = self.holds.get_mut(&job.hold);
        let is_emptied = count.is_some_and(|count| {
            *count -= 1;
            *count == 0
        });
        if is_emptied {
            self.holds.remove(&job.hold);
            self.emptied.push(job.hold);
        }
        if let Some(worker) = self.workers.get_mut(&job.worker) {
            worker.jobs.remove(&key);
            if is_emptied {
                worker.holds.remove(&job.hold);
            }
            if worker.jobs.is_empty() {
                self.workers.remove(&job.worker);
            }
        }
        Some(job)
    }

    /// The worker's stream is closed. What it holds stays its own, in the database.
    pub(crate) fn forget_worker(&mut self, worker: i64) {
        let Some(OfWorker { jobs, holds }) = self.workers.remove(&worker) else { return };
        for (id, fence) in jobs {
            if let Some(job) = self.jobs.remove(&(id, fence)) {
                self.unreported.add(Claim { id, fence, holder: worker }, job.since, job.record);
            }
        }
        for hold in holds {
            self.holds.remove(&hold);
        }
    }

    /// Every stream is closed.
    pub(crate) fn forget_all(&mut self) {
        let workers: Vec<i64> = self.workers.keys().copied().collect();
        workers.into_iter().for_each(|worker| self.forget_worker(worker));
        self.emptied.clear();
    }

    pub(crate) fn claims_of(&self, workers: &[i64]) -> Vec<Claim> {
        let had = workers.iter().filter_map(|worker| Some((*worker, self.workers.get(worker)?)));
        let claims = had
            .flat_map(|(holder, had)| had.jobs.iter().map(move |&(id, fence)| Claim { id, fence, holder }));
        claims.collect()
    }

    pub(crate) fn holds_of(&self, worker: i64) -> impl Iterator<Item = i64> {
        self.workers.get(&worker).into_iter().flat_map(|worker| &worker.holds).copied()
    }

    /// The database has these holds, and nothing in them.
    pub(crate) fn add_emptied(&mut self, holds: impl Iterator<Item = i64>) {
        self.emptied.extend(holds);
    }

    /// Holds to delete with the next write.
    pub(crate) fn take_emptied(&mut self) -> Vec<i64> {
        std::mem::take(&mut self.emptied)
    }

    /// Records metrics and spans of attempts that ended. `attempts` are those, by job id, that were read from the database. Returns jobs that
    /// their handlers have completed and that are not known here: the node that sent them records them. Such a job is not lost if its
    /// history does not tell how it ended.
    #[must_use = "the node that sent these must be told"]
    pub(crate) fn record(
        &mut self,
        endings: &[Settlement],
        sources: &[Source],
        results: &[SettleResult],
        attempts: &HashMap<i64, AttemptInfo>,
    ) -> Vec<Claim> {
        let (mut lost, mut elsewhere) = (0, Vec::new());
        for ((Settlement { claim, ending, .. }, source), result) in endings.iter().zip(sources).zip(results) {
            match (result, source) {
                (SettleResult::Written, _) => {
                    if !self.record_ended(*claim, ending)
                        && let Some(attempt) = attempts.get(&claim.id)
                    {
                        ended_elsewhere(attempt, ending);
                    }
                }
                (SettleResult::Already, Source::Handler) => {
                    let is_known = self.record_completed(*claim);
                    elsewhere.extend((!is_known).then_some(*claim));
                }
                (SettleResult::Lost, Source::Node | Source::Worker) => lost += 1,
                _ => {}
            }
        }
        metrics::lost(lost);
        elsewhere
    }

    /// Records a job that its handler has completed. False: it is not known here, or was recorded before.
    pub(crate) fn record_completed(&mut self, claim: Claim) -> bool {
        self.record_ended(claim, &completed())
    }

    fn record_ended(&mut self, claim: Claim, ending: &Ending) -> bool {
        if let Some(job) = self.get(claim) {
            job.record.ended(claim.id, ending, job.since.elapsed());
            return true;
        }
        let unreported = self.unreported.take(claim);
        unreported.is_some_and(|(since, record)| {
            record.ended(claim.id, ending, since.elapsed());
            true
        })
    }
}
