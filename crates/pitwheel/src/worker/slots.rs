//! The slots of a worker: which are free, what runs in the others, and what waits to start in them.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use tokio::task::AbortHandle;

use crate::engine::claim_sink::Reserved;
use crate::job::claim::{Claim, Claimed, QueueSlots};
use crate::job::limits::CLAIM_MAX;
use crate::job::pace::{AHEAD_MAX, Pace};
use crate::worker::context::Context;

/// No more is claimed while this many endings are not written: a slot is free when its handler has ended, so endings could pile up
/// behind a slow database.
const UNSETTLED_MAX: usize = 2000;
/// How long a suspect waits at most for endings to be written. Longer than that takes, unless a row is locked, or the database is away.
const ENDINGS_WAIT: Duration = Duration::from_secs(1);

pub(super) struct Slots {
    queues: Vec<Queue>,
    pub(super) running: HashMap<Claim, Running>,
    /// Claims that have ended and whose endings are not written yet.
    unsettled: HashMap<Claim, Unsettled>,
    /// When a handler ended last.
    last_end: Option<Instant>,
    /// How many jobs of each hold are not settled yet.
    holds: HashMap<i64, usize>,
    /// Holds whose jobs are all settled, to be deleted with a later write.
    emptied: Vec<i64>,
    /// The queue that the next claim names first; queues take turns.
    turn: usize,
    /// A suspect runs, and nothing may run beside it.
    alone: bool,
    /// The claimer was woken for free slots and has not reserved any since. Waking it once for each job would cost more than the
    /// claim does.
    woken: bool,
    /// How many jobs may still be claimed; `None`: without limit.
    budget: Option<usize>,
    /// The queues in which claims found nothing since the last one that found something.
    empty: BTreeSet<String>,
}

struct Queue {
    name: String,
    slots: usize,
    free: usize,
    /// Slots and places ahead that claims in progress may fill.
    reserved: usize,
    /// Claimed jobs that start when a slot becomes free, and since when each waits. Empty while a slot is free.
    ahead: VecDeque<(Instant, Claimed)>,
    pace: Pace,
}

impl Queue {
    /// How many jobs to claim. A worker with a budget claims none ahead of its slots: it would have to release them at its end.
    fn wanted(&self, budget: Option<usize>) -> usize {
        let expected = self.ahead.len() + self.reserved;
        match budget {
            Some(left) => self.free.saturating_sub(expected).min(left),
            None => self.pace.wanted(self.slots, self.free, expected),
        }
    }
}

pub(super) struct Running {
    pub(super) context: Context,
    pub(super) started: Instant,
    pub(super) task: AbortHandle,
}

/// What follows when a handler has ended.
pub(super) struct Freed {
    /// The next job to start in its slot.
    pub(super) next: Option<Claimed>,
    /// Whether to wake the claimer for this queue. Once it was woken, only after it has reserved slots. The room of other queues does
    /// not matter: an idle one has room at all times, and the end of every job would wake it.
    pub(super) wants_claim: bool,
}

struct Unsettled {
    hold: i64,
    /// `None`: the job was not started.
    attempt: Option<Ended>,
}

/// An attempt that has ended.
pub(super) struct Ended {
    pub(super) context: Context,
    started: Instant,
}

impl Ended {
    /// The time since its start.
    pub(super) fn took(&self) -> Duration {
        self.started.elapsed()
    }
}

/// How many jobs to claim for each queue, at most `max` in all. Each gets a part at first, so that an idle queue is asked although another
/// one has room for a whole claim; what is left goes to those that come first.
fn shares(wanted: &[(usize, usize)], max: usize) -> Vec<usize> {
    let part = (max / wanted.len().max(1)).max(1);
    let (mut shares, mut left) = (vec![0; wanted.len()], max);
    for limit in [part, max] {
        for ((_, wanted), share) in wanted.iter().zip(&mut shares) {
            let more = (*wanted).min(limit).saturating_sub(*share).min(left);
            *share += more;
            left -= more;
        }
    }
    shares
}

impl Slots {
    /// `budget`: how many jobs may be claimed in all.
    pub(super) fn new(queues: Vec<QueueSlots>, budget: Option<usize>) -> Slots {
        let queue = |QueueSlots { queue: name, slots }| Queue {
            name,
            slots,
            free: slots,
            reserved: 0,
            ahead: VecDeque::new(),
            pace: Pace::default(),
        };
        Slots {
            queues: queues.into_iter().map(queue).collect(),
            running: HashMap::new(),
            unsettled: HashMap::new(),
            last_end: None,
            holds: HashMap::new(),
            emptied: Vec::new(),
            turn: 0,
            alone: false,
            woken: false,
            budget,
            empty: BTreeSet::new(),
        }
    }

    /// Reserves room for one claim, in all queues or in some.
    pub(super) fn reserve(&mut self, only: Option<&BTreeSet<String>>) -> Reserved {
        let mut reserved = Reserved::default();
        self.woken = false;
        if self.alone || self.unsettled.len() >= UNSETTLED_MAX {
            return reserved;
        }
        let count = self.queues.len();
        let in_turn = (0..count).map(|n| (self.turn + n) % count);
        let asked = in_turn.filter(|&at| only.is_none_or(|only| only.contains(&self.queues[at].name)));
        let wanted =
            asked.map(|at| (at, self.queues[at].wanted(self.budget))).filter(|(_, slots)| *slots > 0);
        let wanted: Vec<(usize, usize)> = wanted.collect();
        let shares = shares(&wanted, self.budget.map_or(CLAIM_MAX, |left| left.min(CLAIM_MAX)));
        let left_out = shares.iter().position(|slots| *slots == 0);
        self.turn = match (left_out, only) {
            (Some(n), _) => wanted[n].0,
            (None, None) => (self.turn + 1) % count,
            // A claim of some must not move on past others that the last claim of all has left out.
            (None, Some(_)) => self.turn,
        };
        for ((at, _), slots) in wanted.into_iter().zip(shares).filter(|(_, slots)| *slots > 0) {
            let queue = &mut self.queues[at];
            queue.reserved += slots;
            self.budget = self.budget.map(|left| left - slots);
            reserved.total += slots;
            reserved.slots_by_queue.push(QueueSlots { queue: queue.name.clone(), slots });
        }
        reserved
    }

    /// The claim has ended and brought so many jobs, which are passed to [`Slots::accept`].
    pub(super) fn unreserve(&mut self, reserved: &Reserved, claimed: usize) {
        self.budget = self.budget.map(|left| left + reserved.total.saturating_sub(claimed));
        for asked in &reserved.slots_by_queue {
            if let Some(queue) = self.queue(&asked.queue) {
                queue.reserved -= asked.slots;
            }
        }
    }

    /// Takes claimed jobs, in their order. Returns those that have a free slot, which is taken now; the others start later. A job that is
    /// in progress here under the same claim is left out: a failover has lost that claim, and this worker has made it again. The ending of
    /// the attempt that runs is that of both.
    pub(super) fn accept(&mut self, jobs: Vec<Claimed>) -> Vec<Claimed> {
        let ahead = self.queues.iter().flat_map(|queue| &queue.ahead);
        let ahead: HashSet<Claim> = ahead.map(|(_, job)| job.claim).collect();
        let (mut start, now) = (Vec::with_capacity(jobs.len()), Instant::now());
        for job in jobs {
            let claim = &job.claim;
            if self.running.contains_key(claim) || self.unsettled.contains_key(claim) || ahead.contains(claim)
            {
                continue;
            }
            *self.holds.entry(job.hold).or_default() += 1;
            match self.queue(&job.queue) {
                Some(queue) if queue.free == 0 => queue.ahead.push_back((now, job)),
                Some(queue) => {
                    queue.free -= 1;
                    start.push(job);
                }
                None => start.push(job),
            }
        }
        start
    }

    /// The handler has ended, so its slot is free. `None`: the attempt has an ending already, and this one must not be written.
    pub(super) fn end(&mut self, claim: Claim) -> Option<Freed> {
        let Running { context, started, .. } = self.running.remove(&claim)?;
        let (budget, woken) = (self.budget, self.woken);
        let mut freed = Freed { next: None, wants_claim: false };
        if let Some(queue) = self.queue(context.queue()) {
            queue.pace.record(started.elapsed());
            freed.next = queue.ahead.pop_front().map(|(_, job)| job);
            if freed.next.is_none() {
                queue.free += 1;
            }
            freed.wants_claim = !woken && queue.wanted(budget) > 0;
        }
        self.woken |= freed.wants_claim;
        self.ended(claim, context, started);
        Some(freed)
    }

    /// The attempt whose ending is not written yet, if the job was started.
    pub(super) fn unsettled(&self, claim: Claim) -> Option<&Context> {
        self.unsettled.get(&claim)?.attempt.as_ref().map(|ended| &ended.context)
    }

    /// The ending was written, or refused. Returns the attempt, if the job was started.
    pub(super) fn settled(&mut self, claim: Claim) -> Option<Ended> {
        let Unsettled { hold, attempt } = self.unsettled.remove(&claim)?;
        self.count_off(hold);
        attempt
    }

    /// Stops the handlers that run. Returns their claims, whose attempts end here.
    pub(super) fn abort_running(&mut self) -> Vec<Claim> {
        let running = std::mem::take(&mut self.running);
        let claims = running.keys().copied().collect();
        for (claim, Running { context, started, task }) in running {
            task.abort();
            self.ended(claim, context, started);
        }
        claims
    }

    /// Takes the jobs back that have not started although they should have long ago. The caller releases them. Nothing is claimed
    /// ahead for their queue until an attempt has ended and shows how long attempts take now.
    pub(super) fn take_late(&mut self) -> Vec<Claim> {
        let mut late = HashSet::new();
        for queue in &mut self.queues {
            if queue.ahead.front().is_some_and(|(since, _)| since.elapsed() > AHEAD_MAX) {
                queue.pace = Pace::default();
                late.extend(queue.ahead.iter().map(|(_, job)| job.claim));
            }
        }
        self.take_ahead(|claim| late.contains(&claim))
    }

    /// Takes the jobs back that have not started and that `which` selects. The caller releases them.
    pub(super) fn take_ahead(&mut self, which: impl Fn(Claim) -> bool) -> Vec<Claim> {
        let mut claims = Vec::new();
        for queue in &mut self.queues {
            queue.ahead.retain(|(_, job)| {
                let take = which(job.claim);
                if take {
                    claims.push(job.claim);
                    self.unsettled.insert(job.claim, Unsettled { hold: job.hold, attempt: None });
                }
                !take
            });
        }
        claims
    }

    /// Whether nothing runs, waits to start, or waits to be settled.
    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty()
            && self.unsettled.is_empty()
            && self.queues.iter().all(|queue| queue.ahead.is_empty())
    }

    /// Whether nothing more may be claimed after this claim, which brought so many jobs: the budget is used up, or nothing is due in
    /// any queue. A small budget is spent on one queue at a time, so this takes a claim of each.
    pub(super) fn is_last_claim(&mut self, reserved: &Reserved, claimed: usize) -> bool {
        let Some(left) = self.budget else { return false };
        if claimed > 0 {
            self.empty.clear();
            return left == 0 && claimed == reserved.total;
        }
        self.empty.extend(reserved.slots_by_queue.iter().map(|asked| asked.queue.clone()));
        self.empty.len() == self.queues.len()
    }

    /// Whether the worker ends by itself.
    pub(super) fn has_budget(&self) -> bool {
        self.budget.is_some()
    }

    /// Reserves the whole worker for one suspect, if nothing runs or waits to start. Another suspect may run: it stays alone. Endings are
    /// written first, if no row is locked: a crash would be counted for their jobs too.
    pub(super) fn reserve_all(&mut self, now: Instant) -> bool {
        let is_idle = self.running.is_empty() && self.queues.iter().all(|queue| queue.ahead.is_empty());
        let are_written = self.unsettled.is_empty()
            || self.last_end.is_none_or(|end| now.saturating_duration_since(end) >= ENDINGS_WAIT);
        let is_free = is_idle && are_written;
        self.alone |= is_free;
        is_free
    }

    /// There was no suspect to run alone, or it runs already.
    pub(super) fn unreserve_all(&mut self) {
        self.alone = false;
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

    /// Whether the claim is in progress: its job waits for a slot, runs, or has ended and its ending is not written yet.
    pub(super) fn knows(&self, claim: &Claim) -> bool {
        self.running.contains_key(claim)
            || self.unsettled.contains_key(claim)
            || self.queues.iter().flat_map(|queue| &queue.ahead).any(|(_, job)| job.claim == *claim)
    }

    fn ended(&mut self, claim: Claim, context: Context, started: Instant) {
        let hold = context.job().hold;
        self.unsettled.insert(claim, Unsettled { hold, attempt: Some(Ended { context, started }) });
        self.last_end = Some(Instant::now());
        // Its ending may wait for a lock, but other jobs not for that.
        self.alone &= !self.running.is_empty();
    }

    fn queue(&mut self, name: &str) -> Option<&mut Queue> {
        self.queues.iter_mut().find(|queue| queue.name == name)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_queue_is_asked_although_others_have_room_for_whole_claims() {
        assert_eq!(shares(&[(0, 520), (1, 20)], 500), [480, 20]);
        assert_eq!(shares(&[(0, 520); 10], 500), [50; 10]);
        assert_eq!(shares(&[(0, 20); 10], 500), [20; 10]);
        assert_eq!(shares(&[(0, 3), (1, 3)], 2), [1, 1], "a budget");
        assert_eq!(shares(&[], 500), [0; 0]);
    }

    #[test]
    fn queues_that_a_claim_left_out_are_first_in_the_next_one() {
        let queues = (0..1200).map(|n| QueueSlots { queue: n.to_string(), slots: 1 });
        let mut slots = Slots::new(queues.collect(), None);
        let mut asked = HashSet::new();
        for _ in 0..3 {
            let reserved = slots.reserve(None);
            assert!(reserved.total <= CLAIM_MAX);
            slots.unreserve(&reserved, 0);
            asked.extend(reserved.slots_by_queue.into_iter().map(|asked| asked.queue));
            let some = slots.reserve(Some(&BTreeSet::from(["0".to_owned()])));
            slots.unreserve(&some, 0);
        }
        assert_eq!(asked.len(), 1200);
    }
}
