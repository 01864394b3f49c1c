//! One open stream of a worker, and what is sent through it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use pitwheel::Claim;
use pitwheel::engine::limits::CLAIM_MAX;
use pitwheel::engine::{Claimed, Pace};
use tokio::sync::mpsc;

use crate::dispatch::comparison::Comparison;
use crate::dispatch::group::Group;
use crate::dispatch::job_bytes::job_bytes;
use crate::dispatch::outstanding::{Outstanding, Stage};
use crate::dispatch::suspects::Process;
use crate::listen::lifetimes::Lifetime;
use crate::listen::unwritten::Unwritten;

/// Cancel messages that wait in a stream. Heartbeats carry cancel requests too, so more need not be queued.
const CANCELS_MAX: usize = 16;

/// Bytes of jobs in one message, unless one job has more. Clients accept 4 MiB if they are not configured otherwise.
pub(crate) const MESSAGE_BYTES_MAX: usize = 1024 * 1024;
/// No more is claimed for a stream while this many of its endings are not written: a slot is free when its ending is reported, so
/// endings could pile up behind a slow database.
const UNSETTLED_MAX: usize = 2000;
/// Bytes of jobs that wait for a slot before a worker gets no more. A worker that reads has far fewer.
const QUEUE_BYTES_MAX: usize = 8 * 1024 * 1024;
/// What waits at most, when the jobs of a claim are larger than those before.
const QUEUE_BYTES_LIMIT: usize = 2 * QUEUE_BYTES_MAX;
/// The size that a job is expected to have before one was sent: that of the largest payload.
const JOB_BYTES_FIRST: usize = 256 * 1024;

/// What is sent to a worker through its stream.
#[derive(Debug)]
pub(crate) enum StreamMessage {
    /// Jobs that were claimed for it.
    Jobs(Vec<Claimed>),
    /// Running jobs to cancel.
    Cancels(Vec<Claim>),
}

/// The channel of a stream. It has room for a message for every slot and for every job claimed ahead, because a message carries at
/// least one job, and for [`CANCELS_MAX`] cancel messages.
pub(crate) fn stream_channel(slots: usize) -> (mpsc::Sender<StreamMessage>, mpsc::Receiver<StreamMessage>) {
    mpsc::channel(slots + CLAIM_MAX + CANCELS_MAX)
}

/// What became of jobs that were given to a stream.
pub(crate) struct Sent {
    /// Claims that did not fit: they must be released. They keep their slots until then.
    pub(crate) unsent: Vec<Claim>,
    /// The connection is gone, or does not take messages although its slots became free: the stream must be closed.
    pub(crate) is_broken: bool,
}

/// What a stream is opened with.
#[derive(Default)]
pub(crate) struct StreamOptions {
    pub(crate) slots: usize,
    /// The id of the token.
    pub(crate) token: Option<i64>,
    /// The name that the process has in all its streams. Empty: it has no other stream.
    pub(crate) process: String,
    /// Whether its worker keeps jobs that wait for a free slot.
    pub(crate) keeps_ahead: bool,
    pub(crate) lifetime: Option<Lifetime>,
    /// What its connection has not written yet.
    pub(crate) unwritten: Unwritten,
}

pub(crate) struct Stream {
    pub(crate) group: Arc<Group>,
    /// The id of the token that it was opened with.
    pub(crate) token: Option<i64>,
    pub(crate) process: Process,
    pub(crate) lifetime: Option<Lifetime>,
    pub(crate) slots: usize,
    /// Jobs that are claimed for it and not settled, and those that a claim under way may bring.
    pub(crate) taken: usize,
    /// Those of a claim under way.
    reserved: usize,
    /// Jobs that its worker has and has not reported.
    pub(crate) running: usize,
    /// Jobs that its worker has reported and that are not settled.
    unsettled: usize,
    /// When it has reported the last one.
    reported_at: Option<Instant>,
    pace: Pace,
    /// Whether its worker keeps jobs that wait for a free slot.
    keeps_ahead: bool,
    /// Jobs that were sent and wait there for a slot, with their bytes. Some may have been reported or have ended meanwhile.
    waiting: VecDeque<(Claim, usize)>,
    /// Wakes the sender of the stream when a slot is free for a job that was claimed ahead.
    sender: Option<Waker>,
    /// Bytes of jobs that wait for a slot, here or at the worker.
    pub(crate) queued_bytes: usize,
    /// Bytes of messages that its connection has not written yet, also of jobs that have a slot.
    pub(crate) unwritten: Unwritten,
    /// The size of its recent jobs, about.
    mean_bytes: usize,
    pub(crate) messages: mpsc::Sender<StreamMessage>,
    pub(crate) comparison: Comparison,
    /// Whether its worker gets no more jobs: an operator made it quiet, or drains it.
    pub(crate) quiet: bool,
}

impl Stream {
    pub(crate) fn new(
        worker: i64,
        group: Arc<Group>,
        options: StreamOptions,
        messages: mpsc::Sender<StreamMessage>,
    ) -> Stream {
        let StreamOptions { slots, token, process, keeps_ahead, lifetime, unwritten } = options;
        let process = Process::new(worker, token, &process);
        let comparison = Comparison::new(Instant::now());
        Stream {
            group,
            token,
            process,
            lifetime,
            slots,
            taken: 0,
            reserved: 0,
            running: 0,
            unsettled: 0,
            reported_at: None,
            pace: Pace::default(),
            keeps_ahead,
            waiting: VecDeque::new(),
            sender: None,
            queued_bytes: 0,
            unwritten,
            mean_bytes: JOB_BYTES_FIRST,
            messages,
            comparison,
            quiet: false,
        }
    }

    /// How many jobs to claim for it. `is_crowded`: too many bytes wait in streams of its token, so it gets a job only when its worker has
    /// read those before.
    pub(crate) fn wanted(&self, is_crowded: bool) -> usize {
        if self.quiet || self.unsettled >= UNSETTLED_MAX {
            return 0;
        }
        let expected = self.unreported().saturating_sub(self.running);
        let bytes = self.waiting_bytes();
        let fitting = QUEUE_BYTES_MAX.saturating_sub(bytes) / self.mean_bytes;
        let fitting = if is_crowded { usize::from(bytes == 0) } else { fitting };
        self.pace.wanted(self.slots, self.free_slots(), expected).min(fitting.saturating_sub(self.reserved))
    }

    /// Bytes that are in memory for its worker.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.queued_bytes + self.unwritten.bytes()
    }

    /// Whether a job that is claimed by its id has a slot. One that a claim under way may fill counts as free: that claim often brings
    /// nothing, and a job more than there are slots waits for the next one.
    pub(crate) fn has_free_slot(&self) -> bool {
        !self.quiet && self.taken.saturating_sub(self.reserved) < self.slots
    }

    /// Jobs that are claimed for it and that its worker has not reported, and those that a claim under way may bring.
    pub(crate) fn unreported(&self) -> usize {
        self.taken.saturating_sub(self.unsettled)
    }

    /// When its worker has reported the last ending, if there are some that are not written.
    pub(crate) fn unwritten_since(&self) -> Option<Instant> {
        self.reported_at.filter(|_| self.unsettled > 0)
    }

    fn free_slots(&self) -> usize {
        self.slots.saturating_sub(self.running)
    }

    /// How many jobs can be sent to the worker now; if none, `sender` is woken when there is a free slot.
    pub(crate) fn poll_room(&mut self, sender: &Waker) -> usize {
        if self.keeps_ahead {
            return usize::MAX;
        }
        let free = self.free_slots();
        self.sender = (free == 0).then(|| sender.clone());
        free
    }

    /// A job is sent. It starts when slots have taken those before it.
    pub(crate) fn sent(&mut self, claim: Claim, bytes: usize) {
        self.waiting.push_back((claim, bytes));
    }

    /// The free slots take jobs that were sent.
    pub(crate) fn fill_slots(&mut self, outstanding: &mut Outstanding, now: Instant) {
        while self.running < self.slots
            && let Some((claim, bytes)) = self.waiting.pop_front()
        {
            self.left_queue(bytes);
            self.running += usize::from(outstanding.start(claim, now));
        }
    }

    /// Jobs claimed ahead wait for too long. Nothing is claimed ahead until an attempt shows how long attempts take now.
    pub(crate) fn forget_pace(&mut self) {
        self.pace = Pace::default();
    }

    /// The worker has reported a job, so its slot is free. `None`: it was not known to have one, because the report of the job
    /// before it is still on its way.
    pub(crate) fn reported(&mut self, took: Option<Duration>, now: Instant) {
        self.unsettled += 1;
        self.reported_at = Some(now);
        if let Some(took) = took {
            self.pace.record(took);
            self.slot_freed();
        }
    }

    /// A job has ended.
    pub(crate) fn ended(&mut self, stage: Stage) {
        self.taken = self.taken.saturating_sub(1);
        self.comparison.freed();
        match stage {
            // It was cancelled, or those before it take longer than expected.
            Stage::Ahead => self.forget_pace(),
            Stage::Running => self.slot_freed(),
            Stage::Reported => self.unsettled -= 1,
        }
        self.group.freed.notify_one();
    }

    fn slot_freed(&mut self) {
        self.running -= 1;
        self.wake_sender();
    }

    pub(crate) fn wake_sender(&mut self) {
        if let Some(sender) = self.sender.take() {
            sender.wake();
        }
    }

    /// Reserves room for one job of a claim.
    pub(crate) fn reserve(&mut self) {
        self.taken += 1;
        self.reserved += 1;
    }

    /// Frees the room that a claim did not fill.
    pub(crate) fn unreserve(&mut self, slots: usize) {
        self.taken = self.taken.saturating_sub(slots);
        self.reserved = self.reserved.saturating_sub(slots);
    }

    /// Hands on the jobs that a claim brought, in messages of limited size.
    pub(crate) fn send(&mut self, jobs: Vec<Claimed>) -> Sent {
        self.reserved = self.reserved.saturating_sub(jobs.len());
        let mut sent = Sent { unsent: Vec::new(), is_broken: false };
        let (mut message, mut message_bytes) = (Vec::new(), 0);
        for job in jobs {
            let bytes = job_bytes(&job);
            self.mean_bytes = (7 * self.mean_bytes + bytes) / 8;
            if self.queued_bytes + message_bytes + bytes > QUEUE_BYTES_LIMIT {
                sent.unsent.push(job.claim);
                continue;
            }
            if message_bytes + bytes > MESSAGE_BYTES_MAX {
                self.send_message(std::mem::take(&mut message), message_bytes, &mut sent);
                message_bytes = 0;
            }
            message_bytes += bytes;
            message.push(job);
        }
        self.send_message(message, message_bytes, &mut sent);
        sent
    }

    fn send_message(&mut self, jobs: Vec<Claimed>, bytes: usize, sent: &mut Sent) {
        if jobs.is_empty() {
            return;
        }
        let claims: Vec<Claim> = jobs.iter().map(|job| job.claim).collect();
        // What is still in the channel when the stream is dropped is released there.
        if sent.is_broken || self.messages.try_send(StreamMessage::Jobs(jobs)).is_err() {
            sent.is_broken = true;
            sent.unsent.extend(claims);
        } else {
            self.queued_bytes += bytes;
        }
    }

    /// A job waits no more. Wakes the claimer if that may be what it waits for.
    pub(crate) fn left_queue(&mut self, bytes: usize) {
        if self.queued_bytes >= QUEUE_BYTES_MAX / 2 {
            self.group.freed.notify_one();
        }
        self.queued_bytes = self.queued_bytes.saturating_sub(bytes);
    }

    pub(crate) fn is_of(&self, group: &Arc<Group>) -> bool {
        Arc::ptr_eq(&self.group, group)
    }
}
