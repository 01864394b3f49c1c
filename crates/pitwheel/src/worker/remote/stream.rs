//! The streams on which jobs arrive: one per queue, or one for a single job.

use std::collections::VecDeque;
use std::future::pending;
use std::sync::Arc;

use pitwheel_proto::v1;
use pitwheel_proto::v1::stream_jobs_response::Event;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tonic::Code;

use crate::engine::retry::RetryDelay;
use crate::error::Error;
use crate::job::claim::{Claim, ClaimRefusal, Claimed, QueueSlots};
use crate::job::ending::unless_committed;
use crate::job::pace::AHEAD_MAX;
use crate::worker::context::Context;
use crate::worker::handler::Handler;
use crate::worker::remote::core::{Held, Remote};
use crate::worker::remote::message::{claim_of, claimed, outcome, refusal_of, release, result};

/// Why a job was not found.
const MISSING: &str = "no job had this id, or its history was pruned";

/// Keeps a stream for one queue open until the worker stops.
pub(super) async fn keep_open(remote: &Arc<Remote>, queue: &QueueSlots) {
    let mut retry_delay = RetryDelay::default();
    let slots = Arc::new(Semaphore::new(queue.slots));
    while !remote.stop.is_cancelled() {
        let ended = tokio::select! {
            ended = stream(remote, Ask::Queue(queue), &slots, &mut retry_delay) => ended,
            () = remote.stop.cancelled() => break,
        };
        if let Err(status) = ended {
            if is_permanent(remote, &status) {
                return give_up(remote, &status);
            }
            tracing::warn!(
                error = %status.message(), worker = remote.name, queue = queue.queue,
                "the stream ended, will open another"
            );
        }
        retry_delay.wait(&remote.stop).await;
    }
}

/// Opens a stream for one job, and keeps it open until the job is reported. Returns why it was not claimed.
pub(super) async fn open_for_job(remote: &Arc<Remote>, id: i64) -> Option<ClaimRefusal> {
    let mut retry_delay = RetryDelay::default();
    let slot = Arc::new(Semaphore::new(1));
    while !remote.stop.is_cancelled() {
        let ended = tokio::select! {
            ended = stream(remote, Ask::Job(id), &slot, &mut retry_delay) => ended,
            () = remote.stop.cancelled() => break,
        };
        let status = match ended {
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
    /// Free slots. Jobs of an earlier stream of the queue keep theirs until they end; jobs that wait for them for too long are released.
    slots: Arc<Semaphore>,
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

    /// Starts jobs in the free slots, in their order.
    fn start(&mut self) {
        let Opened { remote, worker, slots, ahead } = self;
        let mut state = remote.state();
        while !ahead.is_empty()
            && let Ok(slot) = slots.clone().try_acquire_owned()
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
            _ = self.slots.acquire() => {}
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
    fn slots(self) -> usize {
        match self {
            Ask::Queue(queue) => queue.slots,
            Ask::Job(_) => 1,
        }
    }

    fn request(self, remote: &Remote) -> v1::StreamJobsRequest {
        let (queues, job_id) = match self {
            Ask::Queue(queue) => (vec![queue.queue.clone()], None),
            Ask::Job(id) => (Vec::new(), Some(id)),
        };
        v1::StreamJobsRequest {
            worker: remote.name.clone(),
            queues,
            kinds: remote.handlers.kinds(),
            slots: u32::try_from(self.slots()).unwrap_or(u32::MAX),
            process: remote.process.clone(),
            job_id,
            keeps_ahead: true,
        }
    }
}

/// One stream, until it ends. Returns why its only job was not claimed.
async fn stream(
    remote: &Arc<Remote>,
    ask: Ask<'_>,
    slots: &Arc<Semaphore>,
    retry_delay: &mut RetryDelay,
) -> Result<Option<ClaimRefusal>, tonic::Status> {
    let mut messages = remote.client().stream_jobs(ask.request(remote)).await?.into_inner();
    let welcome = match messages.message().await?.and_then(|message| message.event) {
        Some(Event::Welcome(welcome)) => welcome,
        Some(Event::ClaimRefused(refused)) => return Ok(Some(refusal_of(refused.reason()))),
        _ => return Err(tonic::Status::internal("the first message of the stream was not a welcome")),
    };
    retry_delay.reset();
    let worker = welcome.worker_id;
    let declared_dead = CancellationToken::new();
    {
        let mut state = remote.state();
        state.open.insert(worker, declared_dead.clone());
        state.heartbeat_every = welcome.heartbeat_every.and_then(|span| span.try_into().ok());
    }
    remote.welcomed.notify_one();
    let mut opened = Opened { remote, worker, slots: slots.clone(), ahead: VecDeque::new() };
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
async fn run_one(
    remote: Arc<Remote>,
    handler: Option<Arc<Handler>>,
    context: Context,
    _slot: OwnedSemaphorePermit,
) {
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
