//! The streams on which jobs arrive: those of each queue, or one for a single job.

use std::collections::VecDeque;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use pitwheel_proto::v1;
use pitwheel_proto::v1::stream_jobs_response::Event;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tonic::Code;

use crate::engine::retry::RetryDelay;
use crate::error::Error;
use crate::job::claim::{Claim, ClaimRefusal, Claimed, QueueSlots};
use crate::job::ending::unless_committed;
use crate::job::pace::AHEAD_MAX;
use crate::worker::alive::Alive;
use crate::worker::context::Context;
use crate::worker::handler::Handler;
use crate::worker::remote::core::{Held, OpenStream, PROCESS, Remote};
use crate::worker::remote::message::{claim_of, claimed, outcome, refusal_of, release, result};
use crate::worker::remote::slots::{FreeSlots, Slot, StreamSlots};

/// Why a job was not found.
const MISSING: &str = "no job had this id, or its history was pruned";

/// Keeps all slots of one queue in open streams until the worker stops: in one stream, or in several while and after jobs of a broken
/// stream have kept some of them.
pub(super) async fn keep_open(remote: &Arc<Remote>, queue: &QueueSlots) {
    let (free, mut retry_delay) = (FreeSlots::new(queue.slots), RetryDelay::default());
    let (mut streams, mut slots_open, mut one_ended) = (FuturesUnordered::new(), 0, false);
    while !remote.stop.is_cancelled() {
        let next = async {
            if one_ended {
                retry_delay.wait(&remote.stop).await;
            }
            free.take(slots_open).await
        };
        tokio::select! {
            slots = next => {
                one_ended = false;
                slots_open += slots.count();
                streams.push(async move { (slots.count(), stream(remote, Ask::Queue(queue), &slots).await) });
            }
            Some((slots, ended)) = streams.next() => {
                one_ended = true;
                slots_open -= slots;
                if ended.was_open {
                    retry_delay.reset();
                }
                if let Err(status) = ended.end {
                    if is_permanent(remote, &status) {
                        return give_up(remote, &status);
                    }
                    tracing::warn!(
                        error = %status.message(), worker = remote.name, queue = queue.queue,
                        "the stream ended, will open another"
                    );
                }
            }
            () = remote.stop.cancelled() => break,
        }
    }
}

/// Opens a stream for one job, and keeps it open until the job is reported. Returns why it was not claimed.
pub(super) async fn open_for_job(remote: &Arc<Remote>, id: i64) -> Option<ClaimRefusal> {
    let mut retry_delay = RetryDelay::default();
    let slot = FreeSlots::new(1).take(0).await;
    while !remote.stop.is_cancelled() {
        let ended = tokio::select! {
            ended = stream(remote, Ask::Job(id), &slot) => ended,
            () = remote.stop.cancelled() => break,
        };
        if ended.was_open {
            retry_delay.reset();
        }
        let status = match ended.end {
            Ok(refusal) => return refusal,
            // The job runs, and is reported without the stream.
            Err(_) if remote.counters.stats().started > 0 => return None,
            Err(status) => status,
        };
        if status.code() == Code::NotFound {
            remote.state().problem.get_or_insert(Error::NotFound(id, MISSING));
            return None;
        }
        if is_permanent(remote, &status) {
            give_up(remote, &status);
            return None;
        }
        tracing::warn!(error = %status.message(), worker = remote.name, job.id = id, "cannot claim the job, will try again");
        retry_delay.wait(&remote.stop).await;
    }
    None
}

/// A first stream that is refused with one of these codes will be refused every time.
fn is_permanent(remote: &Remote, status: &tonic::Status) -> bool {
    let codes = [Code::InvalidArgument, Code::PermissionDenied, Code::Unauthenticated];
    codes.contains(&status.code()) && remote.state().heartbeat_every.is_none()
}

fn give_up(remote: &Remote, status: &tonic::Status) {
    let problem = Error::Invalid(format!("the server refuses this worker: {}", status.message()));
    remote.state().problem.get_or_insert(problem);
    remote.stop.cancel();
}

/// An open stream. However it ends, it is marked as ended, and what has not started is released.
struct Opened<'a> {
    remote: &'a Arc<Remote>,
    worker: i64,
    declared_dead: CancellationToken,
    slots: &'a StreamSlots,
    /// Jobs that wait for a free slot, and since when.
    ahead: VecDeque<(Instant, Claimed)>,
}

impl Opened<'_> {
    /// Takes jobs, and starts those that have a free slot.
    fn accept(&mut self, jobs: Vec<v1::Assignment>) {
        let now = Instant::now();
        self.ahead.extend(jobs.into_iter().map(|job| (now, claimed(self.worker, job))));
        self.start();
    }

    /// Starts jobs in the free slots, in their order. If the lease may have ended, others may have run them by now: they are given back.
    fn start(&mut self) {
        let now = std::time::Instant::now();
        let is_in_doubt =
            self.remote.state().open.get(&self.worker).is_none_or(|open| open.alive.is_in_doubt(now));
        if is_in_doubt {
            return self.release(|_| true);
        }
        let Opened { remote, worker, slots, ahead, .. } = self;
        let mut state = remote.state();
        while !ahead.is_empty()
            && let Some(slot) = slots.try_take()
            && let Some((_, job)) = ahead.pop_front()
        {
            remote.counters.started(1);
            let claim = job.claim;
            let (handler, history) = remote.handlers.get(&job.kind);
            let context = Context::new(remote.backend.clone(), job, history);
            let attempt = run_one((*remote).clone(), handler, context.clone(), slot);
            let task = tokio::spawn(attempt).abort_handle();
            state.held.insert(claim, Held { worker: *worker, context, task, ended: false });
        }
    }

    /// Waits until a job that waits can start, or has waited for too long.
    async fn slot_or_late(&self) {
        let Some((since, _)) = self.ahead.front() else { return pending().await };
        tokio::select! {
            () = self.slots.free() => {}
            () = sleep_until(*since + AHEAD_MAX) => {}
        }
    }

    /// Releases the jobs that wait if the first has waited for too long: those before it take longer than expected, and another
    /// worker may be free.
    fn release_late(&mut self) {
        if self.ahead.front().is_some_and(|(since, _)| since.elapsed() >= AHEAD_MAX) {
            self.release(|_| true);
        }
    }

    /// Gives back jobs that have not started. One that was asked to cancel is cancelled by that.
    fn release(&mut self, which: impl Fn(Claim) -> bool) {
        let ahead = std::mem::take(&mut self.ahead).into_iter();
        let (released, ahead): (VecDeque<_>, _) = ahead.partition(|(_, job)| which(job.claim));
        self.ahead = ahead;
        let _ = self.remote.results.push(released.into_iter().map(|(_, job)| release(job.claim)));
    }
}

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        self.release(|_| true);
        let mut state = self.remote.state();
        state.open.remove(&self.worker);
        state.ended.insert(self.worker);
    }
}

/// What a stream is for.
#[derive(Clone, Copy)]
enum Ask<'a> {
    Queue(&'a QueueSlots),
    Job(i64),
}

impl Ask<'_> {
    fn request(self, remote: &Remote, slots: &StreamSlots) -> v1::StreamJobsRequest {
        let (queues, job_id) = match self {
            Ask::Queue(queue) => (vec![queue.queue.clone()], None),
            Ask::Job(id) => (Vec::new(), Some(id)),
        };
        v1::StreamJobsRequest {
            worker: remote.name.clone(),
            queues,
            kinds: remote.handlers.kinds(),
            slots: u32::try_from(slots.count()).unwrap_or(u32::MAX),
            process: PROCESS.clone(),
            job_id,
            keeps_ahead: true,
        }
    }
}

/// A stream that has ended.
struct Ended {
    /// Whether the server had accepted it.
    was_open: bool,
    /// Why its only job was not claimed, or why it broke.
    end: Result<Option<ClaimRefusal>, tonic::Status>,
}

/// One stream, until it ends.
async fn stream(remote: &Arc<Remote>, ask: Ask<'_>, slots: &StreamSlots) -> Ended {
    match open(remote, ask, slots).await {
        Ok(Ok((opened, messages))) => Ended { was_open: true, end: receive(opened, messages, ask).await },
        Ok(Err(refusal)) => Ended { was_open: false, end: Ok(Some(refusal)) },
        Err(status) => Ended { was_open: false, end: Err(status) },
    }
}

type Messages = tonic::Streaming<v1::StreamJobsResponse>;

/// Opens a stream, or returns why its only job was not claimed.
async fn open<'a>(
    remote: &'a Arc<Remote>,
    ask: Ask<'_>,
    slots: &'a StreamSlots,
) -> Result<Result<(Opened<'a>, Messages), ClaimRefusal>, tonic::Status> {
    let asked = std::time::Instant::now();
    let mut messages = remote.client().stream_jobs(ask.request(remote, slots)).await?.into_inner();
    let welcome = match messages.message().await?.and_then(|message| message.event) {
        Some(Event::Welcome(welcome)) => welcome,
        Some(Event::ClaimRefused(refused)) => return Ok(Err(refusal_of(refused.reason()))),
        _ => return Err(tonic::Status::internal("the first message of the stream was not a welcome")),
    };
    let worker = welcome.worker_id;
    let declared_dead = CancellationToken::new();
    {
        // An older server may not name it.
        let lease = welcome.lease.and_then(|span| span.try_into().ok()).unwrap_or(Duration::MAX);
        let open = OpenStream { declared_dead: declared_dead.clone(), alive: Alive::new(lease, asked) };
        let mut state = remote.state();
        state.open.insert(worker, open);
        state.heartbeat_every = welcome.heartbeat_every.and_then(|span| span.try_into().ok());
    }
    remote.welcomed.notify_one();
    Ok(Ok((Opened { remote, worker, declared_dead, slots, ahead: VecDeque::new() }, messages)))
}

/// Receives the messages of an open stream, until it ends.
async fn receive(
    mut opened: Opened<'_>,
    mut messages: Messages,
    ask: Ask<'_>,
) -> Result<Option<ClaimRefusal>, tonic::Status> {
    let (remote, declared_dead) = (opened.remote, opened.declared_dead.clone());
    let mut has_only_job = false;
    loop {
        let message = tokio::select! {
            message = messages.message() => message?,
            () = opened.slot_or_late(), if !opened.ahead.is_empty() => {
                opened.start();
                opened.release_late();
                continue;
            }
            () = declared_dead.cancelled() => return Ok(None),
            () = remote.idle(), if has_only_job => return Ok(None),
        };
        let Some(message) = message else { return Ok(None) };
        match message.event {
            Some(Event::Assignments(assignments)) => {
                opened.accept(assignments.jobs);
                has_only_job = matches!(ask, Ask::Job(_));
            }
            Some(Event::Cancels(cancels)) => {
                remote.cancel(&cancels.claims);
                let claims: Vec<Claim> = cancels.claims.iter().map(claim_of).collect();
                opened.release(|claim| claims.iter().any(|cancelled| cancelled.is_of(claim)));
            }
            // An event of a later version.
            Some(Event::Welcome(_) | Event::ClaimRefused(_)) | None => {}
        }
    }
}

/// One attempt, from the start of its handler until its result waits to be reported.
async fn run_one(remote: Arc<Remote>, handler: Option<Arc<Handler>>, context: Context, _slot: Slot) {
    let claim = context.claim();
    let ended = match handler {
        Some(handler) => {
            let ended = handler.run(&context).await;
            let ended = unless_committed(context.was_settled_by_handler(), ended);
            let completed_by_handler = context.was_settled_by_handler();
            let last_progress = context.last_progress().last();
            let last_progress = last_progress.map(|(fraction, note)| v1::Progress { fraction, note });
            let ended = result(claim, outcome(ended, context.history()));
            v1::Result { completed_by_handler, last_progress, ..ended }
        }
        None => release(claim),
    };
    remote.end(claim, ended);
}
