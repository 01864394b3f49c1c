//! A worker without a database: jobs come down streams from a server, results go back in batches.
//!
//! Every stream is a worker of its own to the server. When one breaks, another is opened; what the old one brought goes on,
//! and heartbeats say so until it is reported.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use pitwheel_proto::v1;
use pitwheel_proto::v1::stream_jobs_response::Event;
use pitwheel_proto::v1::worker_service_client::WorkerServiceClient;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tonic::Code;

use super::{Stats, Worker};
use crate::backend::{Backend, Client, Server};
use crate::claim::Claimed;
use crate::claimer::RetryDelay;
use crate::ctid::Ctid;
use crate::error::Error;
use crate::handler::{Context, Handler, Handlers};
use crate::job::History;
use crate::settle::{Cause, Claim, Outcome, Verdict, committed_or_not};

/// Results per report.
const BATCH_MAX: usize = 1000;
/// A report smaller than this waits a moment for others.
const BATCH_FAIR: usize = 100;
const LINGER: Duration = Duration::from_millis(1);
/// How long a call may take before it is given up and repeated.
const CALL_MAX: Duration = Duration::from_secs(30);
/// Until the first stream is open, nobody has said how often.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// How long a worker that ends tries to report what is left, then to sign off. What no server hears of, the lease gives back.
const LAST_REPORTS: Duration = Duration::from_secs(10);
const LAST_HEARTBEAT: Duration = Duration::from_secs(5);
const PROGRESS: Duration = Duration::from_secs(1);
/// Errors are cut by the server; this keeps a message small enough to be taken at all.
const ERROR_CHARS_MAX: usize = 4000;

struct Remote {
    server: Server,
    backend: Arc<Backend>,
    name: String,
    handlers: Handlers,
    stop: CancellationToken,
    state: Mutex<State>,
    /// Results wait, or there may be nothing left to wait for.
    results: Notify,
    settled_some: Notify,
    /// A stream was opened, and its server said how often to send heartbeats.
    welcomed: Notify,
    closed: CancellationToken,
    started: AtomicU64,
    settled: AtomicU64,
    lost: AtomicU64,
}

#[derive(Default)]
struct State {
    /// Open streams, and what ends each of them here.
    open: HashMap<i64, CancellationToken>,
    /// Streams that ended while some of their jobs were not reported yet.
    ended: HashSet<i64>,
    /// What is ours: running, or its result not answered yet.
    held: HashMap<Claim, Held>,
    results: Vec<v1::Result>,
    heartbeat_every: Option<Duration>,
    /// Why there is no use in going on.
    problem: Option<Error>,
}

struct Held {
    worker: i64,
    context: Context,
    task: AbortHandle,
}

/// Works until `shutdown` ends, like a worker at the database.
pub(super) async fn run(
    worker: Worker,
    server: Server,
    shutdown: impl Future<Output = ()>,
) -> Result<Stats, Error> {
    let shut = CancellationToken::new();
    // Also ends when the worker is told to drain.
    let stop = shut.child_token();
    let remote = Arc::new(Remote {
        backend: Arc::new(Backend::Server(server.clone())),
        server,
        name: worker.name,
        handlers: worker.handlers,
        stop,
        state: Mutex::default(),
        results: Notify::new(),
        settled_some: Notify::new(),
        welcomed: Notify::new(),
        closed: CancellationToken::new(),
        started: AtomicU64::new(0),
        settled: AtomicU64::new(0),
        lost: AtomicU64::new(0),
    });
    let streams = worker.queues.iter().map(|(queue, slots)| streaming(&remote, queue, *slots));
    let streams = futures_util::future::join_all(streams);
    let work = async {
        streams.await;
        remote.finish_within(worker.grace, &shut).await;
        remote.closed.cancel();
    };
    let endings = async {
        let late = async {
            remote.closed.cancelled().await;
            tokio::time::sleep(LAST_REPORTS).await;
        };
        tokio::select! {
            _ = async { tokio::join!(reporting(&remote), reporting(&remote)) } => {}
            () = late => {
                tracing::warn!(worker = remote.name, "no server takes the last reports: their jobs will run again");
            }
        }
    };
    let shutdown = async {
        shutdown.await;
        shut.cancel();
    };
    let pulse = async {
        tokio::select! {
            () = beating(&remote) => {}
            () = noting(&remote) => {}
            () = async { tokio::join!(work, endings); } => {}
        }
    };
    tokio::join!(pulse, async {
        tokio::select! {
            () = shutdown => {}
            () = remote.closed.cancelled() => {}
        }
    });
    if let Some(problem) = remote.state().problem.take() {
        return Err(problem);
    }
    // Nothing is left: the server need not wait for our leases to run out.
    if !matches!(tokio::time::timeout(LAST_HEARTBEAT, remote.beat()).await, Ok(Ok(()))) {
        tracing::warn!(worker = remote.name, "could not sign off; the leases will run out");
    }
    Ok(Stats {
        started: remote.started.load(Ordering::Relaxed),
        settled: remote.settled.load(Ordering::Relaxed),
        lost: remote.lost.load(Ordering::Relaxed),
    })
}

/// Keeps a stream for one queue open until the worker stops.
async fn streaming(remote: &Arc<Remote>, queue: &str, slots: usize) {
    let mut retry_delay = RetryDelay::default();
    while !remote.stop.is_cancelled() {
        let ended = tokio::select! {
            ended = remote.stream(queue, slots, &mut retry_delay) => ended,
            () = remote.stop.cancelled() => break,
        };
        if let Err(status) = ended {
            if remote.is_hopeless(&status) {
                return remote.give_up(&status);
            }
            tracing::warn!(error = %status.message(), worker = remote.name, queue, "the stream ended, will open another");
        }
        retry_delay.wait(&remote.stop).await;
    }
}

/// Closes a stream in the books when it is over, however it ended.
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

impl Remote {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn client(&self) -> WorkerServiceClient<Client> {
        self.server.workers()
    }

    /// A first stream that is refused like this will be refused every time.
    fn is_hopeless(&self, status: &tonic::Status) -> bool {
        let codes = [Code::InvalidArgument, Code::PermissionDenied, Code::Unauthenticated];
        codes.contains(&status.code()) && self.state().heartbeat_every.is_none()
    }

    fn give_up(&self, status: &tonic::Status) {
        let problem = Error::Invalid(format!("the server refuses this worker: {}", status.message()));
        self.state().problem.get_or_insert(problem);
        self.stop.cancel();
    }

    async fn stream(
        self: &Arc<Remote>,
        queue: &str,
        slots: usize,
        retry_delay: &mut RetryDelay,
    ) -> Result<(), tonic::Status> {
        let request = v1::StreamJobsRequest {
            worker: self.name.clone(),
            queues: vec![queue.to_owned()],
            kinds: self.handlers.kinds(),
            slots: u32::try_from(slots).unwrap_or(u32::MAX),
        };
        let mut messages = self.client().stream_jobs(request).await?.into_inner();
        let Some(v1::StreamJobsResponse { event: Some(Event::Welcome(welcome)) }) =
            messages.message().await?
        else {
            return Err(tonic::Status::internal("the server did not say who we are"));
        };
        retry_delay.reset();
        let worker = welcome.worker_id;
        let declared_dead = CancellationToken::new();
        {
            let mut state = self.state();
            state.open.insert(worker, declared_dead.clone());
            state.heartbeat_every = welcome.heartbeat_every.and_then(|span| span.try_into().ok());
        }
        self.welcomed.notify_one();
        let _opened = Opened { remote: self, worker };
        loop {
            let message = tokio::select! {
                message = messages.message() => message?,
                () = declared_dead.cancelled() => return Ok(()),
            };
            let Some(message) = message else { return Ok(()) };
            match message.event {
                Some(Event::Assignments(assignments)) => self.start(worker, assignments.jobs),
                Some(Event::Cancels(cancels)) => self.cancel(cancels.claims),
                // One that a later server knows of.
                Some(Event::Welcome(_)) | None => {}
            }
        }
    }

    fn start(self: &Arc<Remote>, worker: i64, jobs: Vec<v1::Assignment>) {
        self.started.fetch_add(jobs.len() as u64, Ordering::Relaxed);
        let mut state = self.state();
        for job in jobs {
            let job = claimed(worker, job);
            let claim = job.claim;
            let handler = self.handlers.get(&job.kind);
            let history = handler.as_ref().map_or(History::All, |handler| handler.history);
            let context = Context::new(self.backend.clone(), job, history);
            let task = tokio::spawn(run_one(self.clone(), handler, context.clone())).abort_handle();
            state.held.insert(claim, Held { worker, context, task });
        }
    }

    /// Tells handlers that somebody wants them stopped.
    fn cancel(&self, claims: Vec<v1::Claim>) {
        let state = self.state();
        for claim in claims {
            if let Some(held) = state.held.get(&Claim { id: claim.job_id, fence: claim.fence }) {
                held.context.cancel(true);
            }
        }
    }

    fn push(&self, result: v1::Result) {
        let mut state = self.state();
        state.results.push(result);
        let wake = state.results.len() == 1 || state.results.len() == BATCH_FAIR;
        drop(state);
        if wake {
            self.results.notify_one();
        }
    }

    /// The next results to report; `None` when there will be none.
    async fn next(&self) -> Option<Vec<v1::Result>> {
        while self.state().results.is_empty() {
            tokio::select! {
                () = self.results.notified() => {}
                () = self.closed.cancelled() => break,
            }
        }
        if self.state().results.len() < BATCH_FAIR && !self.closed.is_cancelled() {
            tokio::select! {
                () = tokio::time::sleep(LINGER) => {}
                () = self.results.notified() => {}
            }
        }
        let mut state = self.state();
        let take = state.results.len().min(BATCH_MAX);
        let batch: Vec<v1::Result> = state.results.drain(..take).collect();
        drop(state);
        (!batch.is_empty() || !self.closed.is_cancelled()).then_some(batch)
    }

    /// Reports until it is answered. A batch that the server refuses is halved until the result that it refuses stands
    /// alone; that one is reported as failed instead.
    async fn report(&self, batch: Vec<v1::Result>) {
        let mut parts = vec![batch];
        let mut retry_delay = RetryDelay::default();
        let never = CancellationToken::new();
        while let Some(mut part) = parts.pop() {
            let request = with_deadline(v1::ReportResultRequest { results: part.clone() });
            match self.client().report_result(request).await {
                Ok(answer) => {
                    retry_delay.reset();
                    self.answered(&part, &answer.into_inner().written);
                }
                Err(status) if status.code() == Code::InvalidArgument && part.len() > 1 => {
                    let rest = part.split_off(part.len() / 2);
                    parts.extend([part, rest]);
                }
                Err(status) => {
                    tracing::warn!(error = %status.message(), worker = self.name, results = part.len(), "cannot report, will try again");
                    retry_delay.wait(&never).await;
                    if status.code() == Code::InvalidArgument {
                        part.iter_mut().for_each(|result| *result = refused(result, status.message()));
                    }
                    parts.push(part);
                }
            }
        }
    }

    fn answered(&self, batch: &[v1::Result], written: &[i32]) {
        let mut state = self.state();
        for (result, written) in batch.iter().zip(written) {
            let Some(claim) = result.claim.map(|claim| Claim { id: claim.job_id, fence: claim.fence }) else {
                continue;
            };
            if matches!(result.outcome, Some(v1::result::Outcome::Progress(_))) {
                continue;
            }
            let Some(held) = state.held.remove(&claim) else { continue };
            if *written == i32::from(v1::Written::Yes) || held.context.was_settled_by_handler() {
                self.settled.fetch_add(1, Ordering::Relaxed);
            } else {
                self.lost.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(
                    job.id = claim.id,
                    job.fence = claim.fence,
                    worker = self.name,
                    "lost: the job was given to another worker while it ran here, or the report was repeated"
                );
            }
        }
        drop(state);
        self.settled_some.notify_one();
    }

    /// One heartbeat for all streams, open and ended.
    async fn beat(&self) -> Result<(), tonic::Status> {
        let request = {
            let state = self.state();
            let holding = |worker: i64| {
                let theirs = state.held.iter().filter(move |(_, held)| held.worker == worker);
                theirs.map(|(claim, _)| v1::Claim { job_id: claim.id, fence: claim.fence }).collect()
            };
            let ended = state
                .ended
                .iter()
                .map(|&worker_id| v1::EndedStream { worker_id, holding: holding(worker_id) });
            v1::HeartbeatRequest { worker_ids: state.open.keys().copied().collect(), ended: ended.collect() }
        };
        if request.worker_ids.is_empty() && request.ended.is_empty() {
            return Ok(());
        }
        let over: Vec<i64> = request
            .ended
            .iter()
            .filter(|ended| ended.holding.is_empty())
            .map(|ended| ended.worker_id)
            .collect();
        let answer = self.client().heartbeat(with_deadline(request)).await?.into_inner();
        self.cancel(answer.cancelled);
        let mut state = self.state();
        over.iter().for_each(|worker| {
            state.ended.remove(worker);
        });
        if !answer.draining_worker_ids.is_empty() {
            self.stop.cancel();
        }
        for dead in answer.dead_worker_ids {
            if let Some(stream) = state.open.get(&dead) {
                tracing::warn!(
                    worker = self.name,
                    "declared dead while alive; what ran here is given to others"
                );
                stream.cancel();
            }
            state.ended.remove(&dead);
            state
                .held
                .values()
                .filter(|held| held.worker == dead)
                .for_each(|held| held.context.cancel(false));
        }
        Ok(())
    }

    /// Waits until everything is reported, but after the shutdown no longer than the grace time; then stops what is left and releases it.
    async fn finish_within(&self, grace: Duration, shutdown: &CancellationToken) {
        let idle = async {
            while !self.state().held.is_empty() {
                self.settled_some.notified().await;
            }
        };
        tokio::select! {
            () = idle => return,
            () = async { shutdown.cancelled().await; tokio::time::sleep(grace).await } => {}
        }
        let mut state = self.state();
        let reported: HashSet<v1::Claim> = state.results.iter().filter_map(|result| result.claim).collect();
        let left: Vec<v1::Claim> = state
            .held
            .iter()
            .filter(|(_, held)| !held.task.is_finished())
            .map(|(claim, held)| {
                held.task.abort();
                v1::Claim { job_id: claim.id, fence: claim.fence }
            })
            .filter(|claim| !reported.contains(claim))
            .collect();
        tracing::warn!(
            worker = self.name,
            jobs = left.len(),
            "releasing jobs that did not finish in the grace time"
        );
        let release = |claim| v1::Result {
            claim: Some(claim),
            outcome: Some(v1::result::Outcome::Release(v1::Release {})),
        };
        state.results.extend(left.into_iter().map(release));
        drop(state);
        self.results.notify_waiters();
    }
}

/// Reports results until there will be none.
async fn reporting(remote: &Remote) {
    while let Some(batch) = remote.next().await {
        if !batch.is_empty() {
            remote.report(batch).await;
        }
    }
}

/// Sends heartbeats for as long as the worker is there.
async fn beating(remote: &Remote) {
    let mut retry_delay = RetryDelay::default();
    loop {
        match remote.beat().await {
            Ok(()) => {
                retry_delay.reset();
                let every = remote.state().heartbeat_every.unwrap_or(HEARTBEAT);
                tokio::select! {
                    () = tokio::time::sleep(every) => {}
                    () = remote.welcomed.notified() => {}
                }
            }
            Err(status) => {
                tracing::warn!(error = %status.message(), worker = remote.name, "no answer to the heartbeat, will try again");
                retry_delay.wait(&CancellationToken::new()).await;
            }
        }
    }
}

/// Passes on how far jobs are, once a second.
async fn noting(remote: &Remote) {
    loop {
        tokio::time::sleep(PROGRESS).await;
        let mut state = remote.state();
        let notes: Vec<v1::Result> = state
            .held
            .iter()
            .filter(|(_, held)| !held.context.was_settled_by_handler())
            .filter_map(|(claim, held)| {
                let (fraction, note) = held.context.take_progress()?;
                let outcome = v1::result::Outcome::Progress(v1::Progress { fraction, note });
                Some(v1::Result {
                    claim: Some(v1::Claim { job_id: claim.id, fence: claim.fence }),
                    outcome: Some(outcome),
                })
            })
            .collect();
        state.results.extend(notes);
        let wake = !state.results.is_empty();
        drop(state);
        if wake {
            remote.results.notify_one();
        }
    }
}

/// One attempt, from its handler's first line to its place among the results.
async fn run_one(remote: Arc<Remote>, handler: Option<Arc<Handler>>, context: Context) {
    let outcome = match handler {
        Some(handler) => reply(committed_or_not(&context, handler.run(&context).await), context.history()),
        None => v1::result::Outcome::Release(v1::Release {}),
    };
    let claim = context.claim();
    let claim = v1::Claim { job_id: claim.id, fence: claim.fence };
    remote.push(v1::Result { claim: Some(claim), outcome: Some(outcome) });
}

/// An outcome in the words of the contract.
fn reply(outcome: Outcome, history: History) -> v1::result::Outcome {
    use v1::result::Outcome as Reply;
    match outcome {
        Outcome::Verdict(Verdict::Complete) => {
            Reply::Complete(v1::Complete { result: None, forget: history == History::FailuresOnly })
        }
        Outcome::Verdict(Verdict::CompleteWith(json)) => {
            Reply::Complete(v1::Complete { result: Some(json), forget: false })
        }
        Outcome::Verdict(Verdict::Snooze(delay)) => Reply::Snooze(v1::Snooze { delay: Some(span(delay)) }),
        Outcome::Verdict(Verdict::Bury { reason }) => Reply::Bury(v1::Bury { reason: cut(&reason) }),
        Outcome::Verdict(Verdict::Retry { after, reason }) => Reply::Fail(v1::Fail {
            error: cut(&reason),
            retry_after: Some(span(after)),
            cause: v1::FailureCause::Error.into(),
        }),
        Outcome::Failed(failure) => {
            let cause = match failure.cause {
                Cause::Panic => v1::FailureCause::Panic,
                Cause::Timeout => v1::FailureCause::Timeout,
                Cause::Payload => v1::FailureCause::Payload,
                Cause::Error | Cause::Crash => v1::FailureCause::Error,
            };
            Reply::Fail(v1::Fail { error: cut(&failure.message), retry_after: None, cause: cause.into() })
        }
    }
}

fn refused(result: &v1::Result, problem: &str) -> v1::Result {
    let error = cut(&format!("its result was refused: {problem}"));
    let fail = v1::Fail { error, retry_after: None, cause: v1::FailureCause::Error.into() };
    v1::Result { claim: result.claim, outcome: Some(v1::result::Outcome::Fail(fail)) }
}

fn cut(text: &str) -> String {
    text.chars().take(ERROR_CHARS_MAX).collect()
}

fn span(span: Duration) -> prost_types::Duration {
    prost_types::Duration::try_from(span).unwrap_or(prost_types::Duration { seconds: i64::MAX, nanos: 0 })
}

fn with_deadline<T>(message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(CALL_MAX);
    request
}

/// An assignment as a claim of this worker. Where its row stands is the server's business.
fn claimed(worker: i64, job: v1::Assignment) -> Claimed {
    Claimed {
        claim: Claim { id: job.job_id, fence: job.fence },
        holder: worker,
        ctid: Ctid::default(),
        hold: 0,
        attempt: job.attempt,
        max_attempts: job.max_attempts,
        timeout: job.timeout.and_then(|span| span.try_into().ok()),
        run_at: SystemTime::UNIX_EPOCH,
        priority: 0,
        queue: job.queue.into(),
        kind: job.kind.into(),
        key: job.key,
        payload: job.payload,
        metadata: job.metadata,
    }
}
