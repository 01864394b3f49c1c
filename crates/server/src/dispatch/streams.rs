//! Which streams are open on this node, what each has room for, and what is out.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use pitwheel::engine::{CLAIM_MAX, Claimed, Ctid, Ending, Hold, QueueSlots, Reserved, Settlement};
use pitwheel::{Claim, Settled, TraceContext, metrics};
use pitwheel_proto::v1;
use tokio::sync::mpsc;

use crate::dispatch::group::Group;
use crate::grpc::messages;
use crate::observe::traces;

/// A claim is dealt to this many streams, or to as many as it takes to have room for all of it: few, so that a message carries
/// a good many jobs, and enough that few jobs are spread.
const STREAMS_FAIR: usize = 4;

/// What goes down a stream.
pub(crate) type Message = v1::StreamJobsResponse;

/// All streams of a node. A stream is a worker of its own.
#[derive(Default)]
pub(crate) struct Streams {
    open: HashMap<i64, Stream>,
    out: HashMap<i64, Out>,
    holds: HashMap<i64, HoldCount>,
    emptied: Vec<i64>,
    groups: Vec<Arc<Group>>,
}

struct Stream {
    group: Arc<Group>,
    /// The token it was opened with.
    token: Option<i64>,
    slots: usize,
    /// Jobs sent, or about to be.
    taken: usize,
    messages: mpsc::UnboundedSender<Message>,
    turn: Turn,
    /// Whether a result of one of its jobs was reported here since the last time somebody asked.
    reported: bool,
    /// When its worker was last known to live.
    heard: Instant,
}

/// Whether a stream gets what others get.
#[derive(PartialEq, Eq)]
enum Turn {
    Usual,
    /// It gets nothing more, so that it can run a suspect alone.
    Clearing,
    /// It runs a suspect alone.
    Alone,
}

/// A job that a worker of this node has.
struct Out {
    worker: i64,
    fence: i64,
    hold: i64,
    ctid: Ctid,
    queue: Arc<str>,
    kind: Arc<str>,
    sent: Instant,
    trace: Option<TraceContext>,
}

struct HoldCount {
    worker: i64,
    left: usize,
}

impl Streams {
    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    pub(crate) fn groups(&self) -> usize {
        self.groups.len()
    }

    pub(crate) fn of_token(&self, token: i64) -> usize {
        self.open.values().filter(|stream| stream.token == Some(token)).count()
    }

    /// The token of a stream that is open here.
    pub(crate) fn token_of(&self, worker: i64) -> Option<i64> {
        self.open.get(&worker).and_then(|stream| stream.token)
    }

    /// The token of the stream that this claim was sent down.
    pub(crate) fn token_of_claim(&self, claim: Claim) -> Option<i64> {
        self.ours(claim).and_then(|out| self.token_of(out.worker))
    }

    /// The tokens that streams are open with, each once.
    pub(crate) fn tokens(&self) -> Vec<i64> {
        let tokens: HashSet<i64> = self.open.values().filter_map(|stream| stream.token).collect();
        tokens.into_iter().collect()
    }

    /// Ends the streams of these tokens.
    pub(crate) fn close_tokens(&mut self, tokens: &[i64]) {
        let theirs = |stream: &Stream| stream.token.is_some_and(|token| tokens.contains(&token));
        let workers: Vec<i64> =
            self.open.iter().filter(|(_, stream)| theirs(stream)).map(|(worker, _)| *worker).collect();
        workers.into_iter().for_each(|worker| self.close(worker));
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

    pub(crate) fn open(
        &mut self,
        worker: i64,
        group: Arc<Group>,
        (slots, token): (usize, Option<i64>),
        messages: mpsc::UnboundedSender<Message>,
    ) {
        group.freed.notify_one();
        let (turn, heard) = (Turn::Usual, Instant::now());
        let stream = Stream { group, token, slots, taken: 0, messages, turn, reported: false, heard };
        self.open.insert(worker, stream);
    }

    /// Ends a stream and forgets it. What its worker holds stays its own; the last of a group takes the group with it.
    pub(crate) fn close(&mut self, worker: i64) {
        let Some(stream) = self.open.remove(&worker) else { return };
        self.out.retain(|_, out| out.worker != worker);
        self.holds.retain(|_, hold| hold.worker != worker);
        if !self.open.values().any(|other| Arc::ptr_eq(&other.group, &stream.group)) {
            stream.group.stop.cancel();
            self.groups.retain(|group| !Arc::ptr_eq(group, &stream.group));
        }
    }

    /// Ends every stream.
    pub(crate) fn close_all(&mut self) {
        self.groups.iter().for_each(|group| group.stop.cancel());
        *self = Streams::default();
    }

    pub(crate) fn wake(&self, queue: Option<&str>) {
        let heard =
            |group: &&Arc<Group>| queue.is_none_or(|queue| group.queues.iter().any(|ours| ours == queue));
        self.groups.iter().filter(heard).for_each(|group| group.due.notify_one());
    }

    /// Deals out the room of a group's streams, one hand after the other, so that few jobs are spread over all of them.
    pub(crate) fn reserve(&mut self, group: &Arc<Group>, turn: usize) -> Reserved {
        let mut room: Vec<(i64, &mut Stream)> = self
            .open
            .iter_mut()
            .filter(|(_, stream)| Arc::ptr_eq(&stream.group, group) && stream.turn == Turn::Usual)
            .filter(|(_, stream)| stream.taken < stream.slots)
            .map(|(worker, stream)| (*worker, stream))
            .collect();
        if room.is_empty() {
            return Reserved::default();
        }
        // In one order, from another place each time, so that nobody is always first.
        room.sort_unstable_by_key(|(worker, _)| *worker);
        let first = turn.wrapping_mul(STREAMS_FAIR) % room.len();
        room.rotate_left(first);
        let mut free = 0;
        let enough = room.iter().position(|(_, stream)| {
            free += stream.slots - stream.taken;
            free >= CLAIM_MAX
        });
        room.truncate(enough.map_or(room.len(), |at| (at + 1).max(STREAMS_FAIR)));
        let mut slots_by_worker = Vec::new();
        while slots_by_worker.len() < CLAIM_MAX && !room.is_empty() {
            room.retain_mut(|(worker, stream)| {
                if slots_by_worker.len() < CLAIM_MAX {
                    stream.taken += 1;
                    slots_by_worker.push(*worker);
                }
                stream.taken < stream.slots
            });
        }
        let total = slots_by_worker.len();
        let queues = group.queues.len();
        let slots_by_queue = (0..queues)
            .map(|n| QueueSlots { queue: group.queues[(turn + n) % queues].clone(), slots: total });
        Reserved { slots_by_queue: slots_by_queue.collect(), slots_by_worker, total }
    }

    /// Gives back the room that a claim did not fill.
    pub(crate) fn unreserve(&mut self, slots_by_worker: &[i64], claimed: &[Claimed]) {
        let mut back: HashMap<i64, usize> = HashMap::new();
        slots_by_worker.iter().for_each(|worker| *back.entry(*worker).or_default() += 1);
        for job in claimed {
            if let Some(count) = back.get_mut(&job.holder) {
                *count -= 1;
            }
        }
        for (worker, count) in back {
            if let Some(stream) = self.open.get_mut(&worker) {
                stream.taken = stream.taken.saturating_sub(count);
            }
        }
    }

    /// Sends what was claimed down its streams. What has no stream any more is given back to be released.
    pub(crate) fn send(&mut self, jobs: Vec<Claimed>) -> Vec<Claim> {
        let (mut unsent, sent) = (Vec::new(), Instant::now());
        let mut batches: HashMap<i64, Vec<v1::Assignment>> = HashMap::new();
        for job in jobs {
            if !self.open.contains_key(&job.holder) {
                unsent.push(job.claim);
                continue;
            }
            let out = Out {
                worker: job.holder,
                fence: job.claim.fence,
                hold: job.hold,
                ctid: job.ctid,
                queue: job.queue.clone(),
                kind: job.kind.clone(),
                sent,
                trace: TraceContext::of(job.metadata.as_deref()),
            };
            self.holds.entry(job.hold).or_insert(HoldCount { worker: job.holder, left: 0 }).left += 1;
            self.out.insert(job.claim.id, out);
            batches.entry(job.holder).or_default().push(messages::assignment(job));
        }
        for (worker, jobs) in batches {
            let Some(stream) = self.open.get(&worker) else { continue };
            // A stream that ended meanwhile gives back what is in its channel when it is dropped.
            let event = v1::stream_jobs_response::Event::Assignments(v1::Assignments { jobs });
            let _ = stream.messages.send(v1::StreamJobsResponse { event: Some(event) });
        }
        unsent
    }

    /// The workers whose streams are open here.
    pub(crate) fn workers(&self) -> Vec<i64> {
        self.open.keys().copied().collect()
    }

    /// Tells workers that somebody wants these stopped.
    pub(crate) fn cancel(&self, wanted: Vec<(i64, Claim)>) {
        for same in wanted.chunk_by(|one, other| one.0 == other.0) {
            let Some(stream) = self.open.get(&same[0].0) else { continue };
            let claims = same.iter().map(|(_, claim)| messages::claim_message(*claim)).collect();
            let event = v1::stream_jobs_response::Event::Cancels(v1::Cancels { claims });
            let _ = stream.messages.send(v1::StreamJobsResponse { event: Some(event) });
        }
    }

    /// Where the row of a claim that was sent from here stood.
    pub(crate) fn ctid(&self, claim: Claim) -> Option<Ctid> {
        self.ours(claim).map(|out| out.ctid)
    }

    /// Counts endings of what was sent from here.
    pub(crate) fn count(&self, endings: &[Settlement], settled: &[Settled]) {
        for (ending, settled) in endings.iter().zip(settled) {
            if let Some(out) = self.ours(ending.claim).filter(|_| *settled == Settled::Written) {
                let took = out.sent.elapsed();
                metrics::ended(&out.queue, &out.kind, &ending.ending, took);
                if let Some(trace) = &out.trace {
                    let failed = matches!(
                        ending.ending,
                        Ending::Finished { error: Some(_), .. } | Ending::Back { error: Some(_), .. }
                    );
                    let job = (ending.claim.id, &*out.queue, &*out.kind);
                    traces::processed(trace, job, SystemTime::now() - took, failed);
                }
            }
        }
        metrics::lost(settled.iter().filter(|settled| **settled == Settled::Lost).count() as u64);
    }

    fn ours(&self, claim: Claim) -> Option<&Out> {
        self.out.get(&claim.id).filter(|out| out.fence == claim.fence)
    }

    /// These claims have ended, however: there is room again.
    pub(crate) fn ended(&mut self, claims: impl Iterator<Item = Claim>) {
        for claim in claims {
            let Some(out) = self.ours(claim) else { continue };
            let (worker, hold) = (out.worker, out.hold);
            self.out.remove(&claim.id);
            self.count_off(hold);
            if let Some(stream) = self.open.get_mut(&worker) {
                stream.taken = stream.taken.saturating_sub(1);
                stream.reported = true;
                if stream.taken == 0 && stream.turn == Turn::Alone {
                    stream.turn = Turn::Usual;
                }
                stream.group.freed.notify_one();
            }
        }
    }

    fn count_off(&mut self, hold: i64) {
        let Some(count) = self.holds.get_mut(&hold) else { return };
        count.left -= 1;
        if count.left == 0 {
            self.holds.remove(&hold);
            self.emptied.push(hold);
        }
    }

    /// Holds of which everything has ended, to be forgotten with the next write.
    pub(crate) fn take_emptied(&mut self) -> Vec<i64> {
        std::mem::take(&mut self.emptied)
    }

    /// Streams that are full and of which nothing was reported here since the last time: their results may have gone to
    /// another node.
    pub(crate) fn silent(&mut self) -> Vec<i64> {
        let silent = self.open.iter_mut().filter_map(|(worker, stream)| {
            let reported = std::mem::take(&mut stream.reported);
            (!reported && stream.taken >= stream.slots).then_some(*worker)
        });
        silent.collect()
    }

    /// These workers are known to live.
    pub(crate) fn heard(&mut self, workers: &HashSet<i64>) {
        for worker in workers {
            if let Some(stream) = self.open.get_mut(worker) {
                stream.heard = Instant::now();
            }
        }
    }

    /// Workers that nobody here has heard of for so long: their heartbeats go to another node, or have stopped.
    pub(crate) fn unheard(&self, lease: Duration) -> Vec<i64> {
        let unheard = self.open.iter().filter(|(_, stream)| stream.heard.elapsed() > lease);
        unheard.map(|(worker, _)| *worker).collect()
    }

    /// What silent streams still hold, as the database knows it. The rest has ended elsewhere.
    pub(crate) fn reconcile(&mut self, asked: &[i64], before: &[Claim], held: &[Hold]) {
        let still: HashSet<Claim> = held.iter().flat_map(|hold| &hold.claims).copied().collect();
        let gone: Vec<Claim> = before.iter().filter(|claim| !still.contains(claim)).copied().collect();
        self.ended(gone.into_iter());
        let known = |hold: &&Hold| asked.contains(&hold.worker) && hold.claims.is_empty();
        self.emptied.extend(held.iter().filter(known).map(|hold| hold.id));
    }

    /// The claims that are out to these workers.
    pub(crate) fn claims_of(&self, workers: &[i64]) -> Vec<Claim> {
        let theirs = self.out.iter().filter(|(_, out)| workers.contains(&out.worker));
        theirs.map(|(id, out)| Claim { id: *id, fence: out.fence }).collect()
    }

    /// The workers of a group, each with the holds that are known of it.
    pub(crate) fn known_holds(&self, group: &Arc<Group>) -> Vec<(i64, Vec<i64>)> {
        let ours = self.open.iter().filter(|(_, stream)| Arc::ptr_eq(&stream.group, group));
        let holds_of = |worker: i64| self.holds.iter().filter(move |(_, hold)| hold.worker == worker);
        ours.map(|(worker, _)| (*worker, holds_of(*worker).map(|(id, _)| *id).collect())).collect()
    }

    /// A stream that runs nothing; if there is none, the least busy one is let run empty.
    pub(crate) fn alone(&mut self, group: &Arc<Group>) -> Option<i64> {
        let ours = self.open.iter_mut().filter(|(_, stream)| Arc::ptr_eq(&stream.group, group));
        let mut ours: Vec<(&i64, &mut Stream)> =
            ours.filter(|(_, stream)| stream.turn != Turn::Alone).collect();
        ours.sort_unstable_by_key(|(worker, stream)| (stream.turn != Turn::Clearing, stream.taken, **worker));
        let (worker, stream) = ours.into_iter().next()?;
        stream.turn = if stream.taken == 0 { Turn::Alone } else { Turn::Clearing };
        (stream.turn == Turn::Alone).then_some(*worker)
    }

    /// The suspect that the stream gets, or that there was none after all. Gives back what cannot be sent.
    pub(crate) fn send_alone(&mut self, worker: i64, suspect: Option<Claimed>) -> Vec<Claim> {
        let Some(stream) = self.open.get_mut(&worker) else {
            return suspect.into_iter().map(|job| job.claim).collect();
        };
        let Some(job) = suspect else {
            stream.turn = Turn::Usual;
            stream.group.freed.notify_one();
            return Vec::new();
        };
        stream.taken += 1;
        self.send(vec![job])
    }
}
