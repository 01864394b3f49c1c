//! The streams that are open on this node, and the free slots of each.

mod alone;
mod by_id;
pub(crate) mod places;
mod slots;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use pitwheel::Claim;
use pitwheel::engine::limits::CLAIM_MAX;
use pitwheel::engine::{AttemptInfo, Claimed, Hold, Reserved, SettleResult, Settlement};
use tokio::sync::mpsc;

use crate::dispatch::closing::ClosingStreams;
use crate::dispatch::group::Group;
use crate::dispatch::outstanding::{ClaimedJob, Outstanding, Stage};
use crate::dispatch::source::Source;
use crate::dispatch::stream::{Stream, StreamMessage, StreamOptions};
use crate::dispatch::suspects::Suspects;

/// The streams of a node, shared by everything that serves them.
#[derive(Clone, Default)]
pub(crate) struct SharedStreams {
    streams: Arc<Mutex<Streams>>,
}

impl SharedStreams {
    /// Held for short computations only, never across an `await`.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The open streams by worker id: every stream is a worker of its own.
#[derive(Default)]
pub(crate) struct Streams {
    open: HashMap<i64, Stream>,
    /// How many are being opened, by token.
    opening: HashMap<Option<i64>, usize>,
    closing: ClosingStreams,
    outstanding: Outstanding,
    groups: Vec<Arc<Group>>,
    suspects: Suspects,
}

impl Streams {
    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    pub(crate) fn groups(&self) -> &[Arc<Group>] {
        &self.groups
    }

    /// The workers whose streams are open here.
    pub(crate) fn workers(&self) -> Vec<i64> {
        self.open.keys().copied().collect()
    }

    /// The token of a stream that is open here.
    pub(crate) fn token_of(&self, worker: i64) -> Option<i64> {
        self.open.get(&worker).and_then(|stream| stream.token)
    }

    /// The token of the stream that a claim was sent to.
    pub(crate) fn token_of_claim(&self, claim: Claim) -> Option<i64> {
        self.outstanding.get(claim).and_then(|job| self.token_of(job.worker))
    }

    /// The tokens of all open streams.
    pub(crate) fn tokens(&self) -> HashSet<i64> {
        self.open.values().filter_map(|stream| stream.token).collect()
    }

    /// The group for these queues and kinds, and whether it is new.
    pub(crate) fn group(&mut self, queues: Vec<String>, kinds: Vec<String>) -> (Arc<Group>, bool) {
        if let Some(group) = self.groups.iter().find(|group| group.takes(&queues, &kinds)) {
            return (group.clone(), false);
        }
        let group = Arc::new(Group::new(queues, kinds));
        self.groups.push(group.clone());
        (group, true)
    }

    /// Adds the stream of a worker.
    pub(crate) fn open(
        &mut self,
        worker: i64,
        group: Arc<Group>,
        options: StreamOptions,
        messages: mpsc::Sender<StreamMessage>,
    ) {
        group.freed.notify_one();
        self.open.insert(worker, Stream::new(worker, group, options, messages));
    }

    /// Ends a stream. What its worker holds stays its own, in the database. A group ends with its last stream.
    pub(crate) fn close(&mut self, worker: i64) {
        let Some(stream) = self.open.remove(&worker) else { return };
        self.closing.add(&stream, Instant::now());
        self.outstanding.forget_worker(worker);
        if self.suspects.forget(&stream.process, worker) {
            self.wake_freed();
        }
        if !self.open.values().any(|other| other.is_of(&stream.group)) {
            stream.group.stop.cancel();
            self.groups.retain(|group| !Arc::ptr_eq(group, &stream.group));
        }
    }

    /// Ends the streams of these tokens.
    pub(crate) fn close_tokens(&mut self, tokens: &HashSet<i64>) {
        let has_token = |stream: &Stream| stream.token.is_some_and(|token| tokens.contains(&token));
        let workers: Vec<i64> =
            self.open.iter().filter(|(_, stream)| has_token(stream)).map(|(worker, _)| *worker).collect();
        workers.into_iter().for_each(|worker| self.close(worker));
    }

    /// Closes the connections of streams that were ended and that their clients do not let go of.
    pub(crate) fn cut_unread(&mut self, now: Instant) {
        self.closing.cut_unread(now);
    }

    /// Ends every stream.
    pub(crate) fn close_all(&mut self) {
        self.groups.iter().for_each(|group| group.stop.cancel());
        let (opening, mut outstanding) =
            (std::mem::take(&mut self.opening), std::mem::take(&mut self.outstanding));
        outstanding.forget_all();
        *self = Streams { opening, outstanding, ..Streams::default() };
    }

    /// Wakes the claimers that take from a queue; `None`: all claimers.
    pub(crate) fn wake(&self, queue: Option<&str>) {
        let takes =
            |group: &&Arc<Group>| queue.is_none_or(|queue| group.queues.iter().any(|own| own == queue));
        self.groups.iter().filter(takes).for_each(|group| group.due.notify_one());
    }

    /// Wakes every claimer, because streams of several groups may get jobs again.
    fn wake_freed(&self) {
        self.groups.iter().for_each(|group| group.freed.notify_one());
    }

    /// Reserves room in a group's streams for one claim, for one job of each stream in turn, so that few jobs are spread over
    /// several streams.
    pub(crate) fn reserve(
        &mut self,
        group: &Arc<Group>,
        only: Option<&BTreeSet<String>>,
        now: Instant,
    ) -> Reserved {
        let (turn, streams_min) = (group.next_turn(), group.streams_per_claim());
        let crowded = self.crowded_tokens();
        let Streams { open, suspects, .. } = self;
        let mut wanting: Vec<(i64, usize, &mut Stream)> = open
            .iter_mut()
            .filter(|(_, stream)| stream.is_of(group) && suspects.leave_room(&stream.process, now))
            .map(|(worker, stream)| (*worker, stream.wanted(crowded.contains(&stream.token)), stream))
            .filter(|(_, wanted, _)| *wanted > 0)
            .collect();
        if wanting.is_empty() {
            return Reserved::default();
        }
        // In a fixed order that starts at another stream each time, so that every stream is first equally often.
        wanting.sort_unstable_by_key(|(worker, ..)| *worker);
        let first = turn.wrapping_mul(streams_min) % wanting.len();
        wanting.rotate_left(first);
        let mut jobs = 0;
        let enough = wanting.iter().position(|(_, wanted, _)| {
            jobs += wanted;
            jobs >= CLAIM_MAX
        });
        wanting.truncate(enough.map_or(wanting.len(), |at| (at + 1).max(streams_min)));
        let mut slots_by_worker = Vec::new();
        while slots_by_worker.len() < CLAIM_MAX && !wanting.is_empty() {
            wanting.retain_mut(|(worker, wanted, stream)| {
                if slots_by_worker.len() < CLAIM_MAX {
                    stream.reserve();
                    *wanted -= 1;
                    slots_by_worker.push(*worker);
                }
                *wanted > 0
            });
        }
        let total = slots_by_worker.len();
        Reserved { slots_by_queue: group.slots_by_queue(turn, total, only), slots_by_worker, total }
    }

    /// Frees the reserved room that a claim did not fill.
    pub(crate) fn unreserve(&mut self, slots_by_worker: &[i64], claimed: &[Claimed]) {
        let mut unfilled: HashMap<i64, usize> = HashMap::new();
        slots_by_worker.iter().for_each(|worker| *unfilled.entry(*worker).or_default() += 1);
        for job in claimed {
            if let Some(count) = unfilled.get_mut(&job.claim.holder) {
                *count -= 1;
            }
        }
        for (worker, count) in unfilled {
            if let Some(stream) = self.open.get_mut(&worker) {
                stream.unreserve(count);
            }
        }
    }

    /// Passes claimed jobs to the streams of their workers. Returns the claims that could not be passed, because their stream is
    /// closed or has too many bytes to read: they must be released.
    #[must_use = "claims that were not sent must be released"]
    pub(crate) fn send(&mut self, jobs: Vec<Claimed>) -> Vec<Claim> {
        let (mut unsent, now) = (Vec::new(), Instant::now());
        let mut batches: HashMap<i64, Vec<Claimed>> = HashMap::new();
        for job in jobs {
            if self.open.contains_key(&job.claim.holder) {
                // A claim that a failover lost: another one has its fence now.
                self.ended(std::iter::once(Claim { holder: 0, ..job.claim }));
                self.outstanding.add(&job, now);
                batches.entry(job.claim.holder).or_default().push(job);
            } else {
                unsent.push(job.claim);
            }
        }
        for (worker, jobs) in batches {
            let Some(stream) = self.open.get_mut(&worker) else { continue };
            let sent = stream.send(jobs);
            unsent.extend(sent.unsent);
            if sent.is_broken {
                // The worker opens a new stream.
                self.close(worker);
            }
        }
        unsent
    }

    /// Asks workers to cancel these claims. The requests of one worker stand together. A request that finds no room is left
    /// to the next heartbeat: it must not take the room of jobs.
    pub(crate) fn send_cancels(&self, requests: Vec<(i64, Claim)>) {
        for of_worker in requests.chunk_by(|one, other| one.0 == other.0) {
            let stream = self.open.get(&of_worker[0].0);
            if let Some(stream) =
                stream.filter(|stream| stream.messages.capacity() > stream.slots + CLAIM_MAX)
            {
                let claims = of_worker.iter().map(|(_, claim)| *claim).collect();
                let _ = stream.messages.try_send(StreamMessage::Cancels(claims));
            }
        }
    }

    /// The job of a claim, if it was claimed here.
    pub(crate) fn sent(&self, claim: Claim) -> Option<&ClaimedJob> {
        self.outstanding.get(claim)
    }

    /// Records metrics and spans of endings, like [`Outstanding::record`].
    #[must_use = "the node that sent these must be told"]
    pub(crate) fn record(
        &mut self,
        endings: &[Settlement],
        sources: &[Source],
        results: &[SettleResult],
        attempts: &HashMap<i64, AttemptInfo>,
    ) -> Vec<Claim> {
        self.outstanding.record(endings, sources, results, attempts)
    }

    /// Records jobs that their handlers have completed and that were reported to another node, and frees their slots.
    pub(crate) fn completed_by_handlers(&mut self, claims: impl Iterator<Item = Claim>) {
        for claim in claims {
            self.outstanding.record_completed(claim);
            self.ended(std::iter::once(claim));
        }
    }

    /// Frees the slots of claims that have ended, in whatever way.
    pub(crate) fn ended(&mut self, claims: impl Iterator<Item = Claim>) {
        let ended: Vec<(i64, Stage)> = claims.filter_map(|claim| self.outstanding.remove(claim)).collect();
        self.free(ended);
    }

    /// Frees the slots of jobs that workers had, each with how far it was.
    fn free(&mut self, ended: impl IntoIterator<Item = (i64, Stage)>) {
        let (mut suspect_ended, now) = (false, Instant::now());
        for (worker, stage) in ended {
            if let Some(stream) = self.open.get_mut(&worker) {
                stream.ended(stage);
                stream.fill_slots(&mut self.outstanding, now);
                suspect_ended |= stream.unreported() == 0 && self.suspects.emptied(&stream.process, worker);
            }
        }
        if suspect_ended {
            self.wake_freed();
        }
    }

    /// Holds of which every job has ended, to be deleted with the next write.
    pub(crate) fn take_emptied(&mut self) -> Vec<i64> {
        self.outstanding.take_emptied()
    }

    /// Puts back holds that were to be deleted and were not.
    pub(crate) fn put_back_emptied(&mut self, holds: Vec<i64>) {
        self.outstanding.add_emptied(holds.into_iter());
    }

    /// Workers with jobs that are to be compared with the database now: their results may go to another node.
    pub(crate) fn due_for_comparison(&mut self) -> Vec<i64> {
        let now = Instant::now();
        let busy = self.open.iter_mut().filter(|(_, stream)| stream.taken > 0);
        let due = busy.filter_map(|(worker, stream)| {
            stream.comparison.is_due(stream.running >= stream.slots, now).then_some(*worker)
        });
        due.collect()
    }

    /// Of these claims, those that were not sent from here: the node that sent them does not know that they have ended.
    pub(crate) fn not_sent_from_here(&self, claims: impl Iterator<Item = Claim>) -> Vec<Claim> {
        claims.filter(|claim| self.outstanding.get(*claim).is_none()).collect()
    }

    /// The claims that were sent to these workers and have not ended.
    pub(crate) fn claims_of(&self, workers: &[i64]) -> Vec<Claim> {
        self.outstanding.claims_of(workers)
    }

    /// Frees the slots of claims that the database no longer shows as held: they were settled through another node, or by
    /// their handlers. `sent` are the claims of `workers` before the database was read.
    pub(crate) fn reconcile(&mut self, workers: &[i64], sent: &[Claim], held: &[Hold]) {
        let still_held: HashSet<Claim> = held.iter().flat_map(|hold| &hold.claims).copied().collect();
        let now = Instant::now();
        for claim in sent.iter().filter(|claim| !still_held.contains(claim)) {
            let worker = self.outstanding.get(*claim).map(|job| job.worker);
            if let Some(stream) = worker.and_then(|worker| self.open.get_mut(&worker)) {
                stream.comparison.found_settled(now);
            }
            let ended = self.outstanding.remove_unreported(*claim);
            self.free(ended);
        }
        let workers: HashSet<&i64> = workers.iter().collect();
        let is_empty = |hold: &&Hold| workers.contains(&hold.worker) && hold.claims.is_empty();
        self.outstanding.add_emptied(held.iter().filter(is_empty).map(|hold| hold.id));
    }

    /// Only those of these workers that are in `alive` are alive: ends the streams of the others, so that they open new ones. The
    /// values: whether a worker gets no more jobs.
    pub(crate) fn set_alive(&mut self, workers: &[i64], alive: &HashMap<i64, bool>) {
        for worker in workers {
            let Some(is_quiet) = alive.get(worker) else {
                self.close(*worker);
                continue;
            };
            let Some(stream) = self.open.get_mut(worker) else { continue };
            let was_quiet = std::mem::replace(&mut stream.quiet, *is_quiet);
            if stream.quiet {
                stream.wake_sender();
            } else if was_quiet {
                stream.group.freed.notify_one();
            }
        }
    }

    /// Whether the claim was sent to a worker, or is about to be, and has not ended.
    pub(crate) fn knows(&self, claim: Claim) -> bool {
        self.outstanding.get(claim).is_some()
    }

    /// The workers of a group, and the holds that this node knows.
    pub(crate) fn known_holds(&self, group: &Arc<Group>) -> (Vec<i64>, Vec<i64>) {
        let streams = self.open.iter().filter(|(_, stream)| stream.is_of(group));
        let workers: Vec<i64> = streams.map(|(worker, _)| *worker).collect();
        let holds = workers.iter().flat_map(|worker| self.outstanding.holds_of(*worker)).collect();
        (workers, holds)
    }
}

#[cfg(test)]
mod tests;
