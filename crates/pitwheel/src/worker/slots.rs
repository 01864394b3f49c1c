//! The slots of a worker: which are free, and what runs in the others.

use std::collections::HashMap;
use std::time::Instant;

use tokio::task::AbortHandle;

use crate::engine::claimer::Reserved;
use crate::job::claim::{Claim, Claimed, QueueSlots};
use crate::job::limits::CLAIM_MAX;
use crate::worker::context::Context;

pub(super) struct Slots {
    free: Vec<QueueSlots>,
    pub(super) running: HashMap<Claim, Running>,
    /// How many jobs of each hold are not settled yet.
    holds: HashMap<i64, usize>,
    /// Holds whose jobs are all settled, to be deleted with a later write.
    emptied: Vec<i64>,
    /// The queue that the next claim names first; queues take turns.
    turn: usize,
    /// A suspect runs, and nothing may run beside it.
    alone: bool,
}

pub(super) struct Running {
    pub(super) context: Context,
    pub(super) hold: i64,
    pub(super) started: Instant,
    pub(super) task: AbortHandle,
}

impl Slots {
    pub(super) fn new(free: Vec<QueueSlots>) -> Slots {
        let (running, holds) = (HashMap::new(), HashMap::new());
        Slots { free, running, holds, emptied: Vec::new(), turn: 0, alone: false }
    }

    /// Reserves free slots for one claim.
    pub(super) fn reserve(&mut self) -> Reserved {
        if self.alone {
            return Reserved::default();
        }
        let count = self.free.len();
        self.turn = (self.turn + 1) % count;
        let mut reserved = Reserved::default();
        for at in (0..count).map(|n| (self.turn + n) % count) {
            let queue = &mut self.free[at];
            let slots = queue.slots.min(CLAIM_MAX - reserved.total);
            if slots > 0 {
                queue.slots -= slots;
                reserved.total += slots;
                reserved.slots_by_queue.push(QueueSlots { queue: queue.queue.clone(), slots });
            }
        }
        reserved
    }

    /// Frees the reserved slots that the claim did not fill.
    pub(super) fn unreserve(&mut self, reserved: &Reserved, claimed: &[Claimed]) {
        for asked in &reserved.slots_by_queue {
            let filled = claimed.iter().filter(|job| *job.queue == *asked.queue).count();
            self.free(&asked.queue, asked.slots.saturating_sub(filled));
        }
    }

    /// Puts a job into the slot that was reserved for it.
    pub(super) fn start(&mut self, claim: Claim, running: Running) {
        *self.holds.entry(running.hold).or_default() += 1;
        self.running.insert(claim, running);
    }

    /// Takes a settled job out of its slot, which is free again.
    pub(super) fn end(&mut self, claim: Claim) -> Option<Running> {
        let running = self.running.remove(&claim)?;
        self.free(running.context.queue(), 1);
        self.count_off(running.hold);
        self.alone &= !self.running.is_empty();
        Some(running)
    }

    /// Reserves the whole worker for one suspect, if nothing runs.
    pub(super) fn reserve_all(&mut self) -> bool {
        self.alone = self.running.is_empty();
        self.alone
    }

    /// There was no suspect to run alone.
    pub(super) fn unreserve_all(&mut self) {
        self.alone = false;
    }

    /// Takes a slot for a suspect, which no claim reserved one for.
    pub(super) fn take_one(&mut self, queue: &str) {
        if let Some(free) = self.free.iter_mut().find(|free| free.queue == queue) {
            free.slots = free.slots.saturating_sub(1);
        }
    }

    /// The holds that are empty, each returned once. They are deleted with a later write than the one that settled their last
    /// job: another batch may still contain an earlier job of the hold, and if this process died nothing would find it.
    pub(super) fn take_emptied(&mut self) -> Vec<i64> {
        std::mem::take(&mut self.emptied)
    }

    /// The holds that this worker knows.
    pub(super) fn known_holds(&self) -> Vec<i64> {
        self.holds.keys().copied().collect()
    }

    fn free(&mut self, queue: &str, slots: usize) {
        if let Some(free) = self.free.iter_mut().find(|free| free.queue == queue) {
            free.slots += slots;
        }
    }

    fn count_off(&mut self, hold: i64) {
        let Some(count) = self.holds.get_mut(&hold) else { return };
        *count -= 1;
        if *count == 0 {
            self.holds.remove(&hold);
            self.emptied.push(hold);
        }
    }
}
