//! The streams on which jobs arrive: one per queue, or one for a single job.

use std::sync::Arc;

use pitwheel_proto::v1;
use pitwheel_proto::v1::stream_jobs_response::Event;
use tokio_util::sync::CancellationToken;
use tonic::Code;

use crate::engine::retry::RetryDelay;
use crate::error::Error;
use crate::job::claim::{ClaimRefusal, QueueSlots};
use crate::job::ending::unless_committed;
use crate::worker::context::Context;
use crate::worker::handler::Handler;
use crate::worker::remote::core::{Held, Remote};
use crate::worker::remote::message::{claimed, outcome, refusal_of, release, result};

/// Why a job was not found.
const MISSING: &str = "no job had this id, or its history was pruned";

/// Keeps a stream for one queue open until the worker stops.
pub(super) async fn keep_open(remote: &Arc<Remote>, queue: &QueueSlots) {
    let mut retry_delay = RetryDelay::default();
    while !remote.stop.is_cancelled() {
        let ended = tokio::select! {
            ended = stream(remote, Ask::Queue(queue), &mut retry_delay) => ended,
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
    while !remote.stop.is_cancelled() {
        let ended = tokio::select! {
            ended = stream(remote, Ask::Job(id), &mut retry_delay) => ended,
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

/// Marks a stream as ended, however it ended.
struct Opened<'a> {
    remote: &'a Remote,
    worker: i64,
}

impl Drop for Opened<'_> {
    fn drop(&mut self) {
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
    fn request(self, remote: &Remote) -> v1::StreamJobsRequest {
        let (queues, slots, job_id) = match self {
            Ask::Queue(queue) => (vec![queue.queue.clone()], queue.slots, None),
            Ask::Job(id) => (Vec::new(), 1, Some(id)),
        };
        v1::StreamJobsRequest {
            worker: remote.name.clone(),
            queues,
            kinds: remote.handlers.kinds(),
            slots: u32::try_from(slots).unwrap_or(u32::MAX),
            process: remote.process.clone(),
            job_id,
        }
    }
}

/// One stream, until it ends. Returns why its only job was not claimed.
async fn stream(
    remote: &Arc<Remote>,
    ask: Ask<'_>,
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
    let _opened = Opened { remote, worker };
    let mut has_only_job = false;
    loop {
        let message = tokio::select! {
            message = messages.message() => message?,
            () = declared_dead.cancelled() => return Ok(None),
            () = remote.idle(), if has_only_job => return Ok(None),
        };
        let Some(message) = message else { return Ok(None) };
        match message.event {
            Some(Event::Assignments(assignments)) => {
                start(remote, worker, assignments.jobs);
                has_only_job = matches!(ask, Ask::Job(_));
            }
            Some(Event::Cancels(cancels)) => remote.cancel(&cancels.claims),
            // An event of a later version.
            Some(Event::Welcome(_) | Event::ClaimRefused(_)) | None => {}
        }
    }
}

fn start(remote: &Arc<Remote>, worker: i64, jobs: Vec<v1::Assignment>) {
    remote.counters.started(jobs.len());
    let mut state = remote.state();
    for job in jobs {
        let job = claimed(worker, job);
        let claim = job.claim;
        let (handler, history) = remote.handlers.get(&job.kind);
        let context = Context::new(remote.backend.clone(), job, history);
        let task = tokio::spawn(run_one(remote.clone(), handler, context.clone())).abort_handle();
        state.held.insert(claim, Held { worker, context, task, ended: false });
    }
}

/// One attempt, from the start of its handler until its result waits to be reported.
async fn run_one(remote: Arc<Remote>, handler: Option<Arc<Handler>>, context: Context) {
    let claim = context.claim();
    let ended = match handler {
        Some(handler) => {
            let ended = handler.run(&context).await;
            let ended = unless_committed(context.was_settled_by_handler(), ended);
            let completed_by_handler = context.was_settled_by_handler();
            v1::Result { completed_by_handler, ..result(claim, outcome(ended, context.history())) }
        }
        None => release(claim),
    };
    remote.end(claim, ended);
}
