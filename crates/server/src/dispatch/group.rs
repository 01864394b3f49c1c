//! Streams that take the same kinds from the same queues. One claimer claims for all of them.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pitwheel::engine::{QueueSlots, RunTimes};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

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
