//! Streams that take the same kinds from the same queues. One claimer claims for all of them.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pitwheel::engine::{QueueSlots, RunTimes};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// A claim is spread over this many streams at least, or over all of a group, so that one worker does not get all of the few jobs that
/// are due.
const STREAMS_PER_CLAIM: usize = 4;
/// From this many jobs per claim on, a claim goes to as few streams as have room for it: a message and its report cost as much as some
/// tens of jobs, and with so many jobs it is soon the turn of every stream.
const MANY: usize = 250;

pub(crate) struct Group {
    pub(crate) queues: Vec<String>,
    pub(crate) kinds: Vec<String>,
    /// A job may be due in one of the queues.
    pub(crate) due: Notify,
    /// A stream may have a free slot.
    pub(crate) freed: Notify,
    /// Cancelled when the last stream of the group closes.
    pub(crate) stop: CancellationToken,
    /// Held while one job is claimed by its id, and while unknown claims are released: a claim that is not sent yet
    /// counts as unknown.
    pub(crate) claiming_by_id: tokio::sync::Mutex<()>,
    turn: AtomicUsize,
    /// The average of the last claims that found jobs.
    jobs_per_claim: AtomicUsize,
    /// Whether the last claim filled its slots, so that more may be due.
    was_full: AtomicBool,
    /// When the next runs are due of recurring jobs whose last runs were settled on this node.
    run_times: Mutex<RunTimes>,
}

impl Group {
    pub(crate) fn new(queues: Vec<String>, kinds: Vec<String>) -> Group {
        Group {
            queues,
            kinds,
            due: Notify::new(),
            freed: Notify::new(),
            stop: CancellationToken::new(),
            claiming_by_id: tokio::sync::Mutex::default(),
            turn: AtomicUsize::new(0),
            jobs_per_claim: AtomicUsize::new(0),
            was_full: AtomicBool::new(false),
            run_times: Mutex::default(),
        }
    }

    /// Whether streams with these queues and kinds, both sorted, belong to this group.
    pub(crate) fn takes(&self, queues: &[String], kinds: &[String]) -> bool {
        self.queues == queues && self.kinds == kinds
    }

    pub(crate) fn run_times(&self) -> MutexGuard<'_, RunTimes> {
        self.run_times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the claims, so that each claim starts with another queue and another stream.
    pub(crate) fn next_turn(&self) -> usize {
        self.turn.fetch_add(1, Ordering::Relaxed)
    }

    /// A claim of the group found this many jobs. Only the group's claimer calls this.
    pub(crate) fn found(&self, jobs: usize) {
        if jobs > 0 {
            let average = self.jobs_per_claim.load(Ordering::Relaxed);
            self.jobs_per_claim.store((3 * average + jobs) / 4, Ordering::Relaxed);
        }
    }

    /// Whether the last claim filled its slots.
    pub(crate) fn was_full(&self) -> bool {
        self.was_full.load(Ordering::Relaxed)
    }

    pub(crate) fn note_full(&self, is_full: bool) {
        self.was_full.store(is_full, Ordering::Relaxed);
    }

    /// The streams over which to spread the next claim, at least.
    pub(crate) fn streams_per_claim(&self) -> usize {
        if self.jobs_per_claim.load(Ordering::Relaxed) < MANY { STREAMS_PER_CLAIM } else { 1 }
    }

    /// The queues of one claim, all or some, each with all the slots, which they share. Another queue is first each turn.
    pub(crate) fn slots_by_queue(
        &self,
        turn: usize,
        slots: usize,
        only: Option<&BTreeSet<String>>,
    ) -> Vec<QueueSlots> {
        let count = self.queues.len();
        let queues = (0..count).map(|n| &self.queues[(turn + n) % count]);
        let asked = queues.filter(|queue| only.is_none_or(|only| only.contains(*queue)));
        asked.map(|queue| QueueSlots { queue: queue.clone(), slots }).collect()
    }
}
