//! What a handler can learn and say about the job it runs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::de::DeserializeOwned;
use tokio::sync::Notify;

use crate::engine::enqueue::{self, Enqueued};
use crate::error::Error;
use crate::job::claim::{Claim, Claimed};
use crate::job::ending::Completion;
#[cfg(any(feature = "sqlx", feature = "tokio-postgres"))]
use crate::job::ending::{Ending, Settlement};
use crate::job::followers::check_followers;
use crate::job::limits::NOTE_CHARS_MAX;
use crate::job::new_job::{History, NewJob};
use crate::job::recurrence::Recurrence;
#[cfg(any(feature = "sqlx", feature = "tokio-postgres"))]
use crate::job::recurrence::RunEnd;
use crate::job::step::{CurrentStep, ParentStep};
use crate::job::trace::TraceContext;
use crate::worker::backend::Backend;
use crate::worker::progress::LastProgress;

/// What a handler can learn and say about the job it runs. Cheap to clone.
#[derive(Clone)]
pub struct Context {
    inner: Arc<Inner>,
}

struct Inner {
    backend: Arc<Backend>,
    job: Claimed,
    history: History,
    /// The handler should stop: a cancel was requested, or the claim was lost.
    cancelled: AtomicBool,
    cancel: Notify,
    cancel_requested: AtomicBool,
    settled_by_handler: AtomicBool,
    progress: Mutex<LastProgress>,
    then: Mutex<Vec<NewJob>>,
}

impl Context {
    pub(crate) fn new(backend: Arc<Backend>, job: Claimed, history: History) -> Context {
        Context {
            inner: Arc::new(Inner {
                backend,
                job,
                history,
                cancelled: AtomicBool::new(false),
                cancel: Notify::new(),
                cancel_requested: AtomicBool::new(false),
                settled_by_handler: AtomicBool::new(false),
                progress: Mutex::default(),
                then: Mutex::default(),
            }),
        }
    }

    /// The job's id: the idempotency key for effects outside the database.
    pub fn id(&self) -> i64 {
        self.inner.job.claim.id
    }

    /// The claim of this attempt. Its fence grows with every claim of the job.
    pub fn claim(&self) -> Claim {
        self.inner.job.claim
    }

    /// The number of this attempt, counted from 1.
    pub fn attempt(&self) -> u32 {
        self.inner.job.attempt
    }

    /// The maximum number of attempts.
    pub fn max_attempts(&self) -> u32 {
        self.inner.job.max_attempts
    }

    /// The job's kind.
    pub fn kind(&self) -> &str {
        &self.inner.job.kind
    }

    /// The queue it was claimed from.
    pub fn queue(&self) -> &str {
        &self.inner.job.queue
    }

    /// Its key, if it has one.
    pub fn key(&self) -> Option<&str> {
        self.inner.job.key.as_deref()
    }

    /// The name of its lane, as JSON text.
    pub fn lane(&self) -> Option<&str> {
        self.inner.job.lane.as_deref()
    }

    /// The recurring job that this job is a run of.
    pub fn recurring(&self) -> Option<&Recurrence> {
        self.inner.job.recurrence.as_deref()
    }

    /// The step of a pipeline that this job is.
    pub fn step(&self) -> Option<&CurrentStep> {
        self.inner.job.step.as_deref()
    }

    /// The steps that this one comes after, with their results; empty for a job that is no step.
    pub fn parents(&self) -> &[ParentStep] {
        self.step().map_or(&[], |step| &step.parents)
    }

    /// Its metadata as a type of yours; `None` when there is none or it does not fit the type.
    pub fn metadata<T: DeserializeOwned>(&self) -> Option<T> {
        self.inner.job.metadata.as_deref().and_then(|json| serde_json::from_str(json).ok())
    }

    /// The trace context of the enqueue. Jobs that the handler enqueues belong to the same trace.
    pub fn trace(&self) -> Option<TraceContext> {
        TraceContext::of(self.inner.job.metadata.as_deref())
    }

    /// Enqueues a follower with the completion of this job: it exists if and only if that is written. If the attempt fails,
    /// is snoozed, or has lost its claim, the follower does not exist. At most 100 per job, with 3 MiB of
    /// payloads, metadata and keys.
    pub fn then(&self, job: impl Into<NewJob>) {
        self.followers().push(job.into());
    }

    /// Adds a step to the pipeline of this job, after it, if the pipeline has none of this name. Like [`Context::then`] it exists if and
    /// only if the completion of this job is written. In a job that is no step it is the same as `then`.
    pub fn then_step(&self, name: impl Into<String>, job: impl Into<NewJob>) {
        self.followers().push(job.into().as_step(name));
    }

    /// Enqueues a further job now, like [`Pitwheel::enqueue`](crate::Pitwheel::enqueue). It exists whatever becomes of this
    /// attempt, so a retry enqueues it again: give it a key, or use [`Context::then`].
    pub async fn enqueue(&self, job: impl Into<NewJob>) -> Result<Enqueued, Error> {
        enqueue::only(self.enqueue_many([job]).await?)
    }

    /// Enqueues further jobs now, like [`Pitwheel::enqueue_many`](crate::Pitwheel::enqueue_many).
    pub async fn enqueue_many<T: Into<NewJob>>(
        &self,
        jobs: impl IntoIterator<Item = T>,
    ) -> Result<Vec<Enqueued>, Error> {
        self.inner.backend.enqueue(jobs.into_iter().map(|job| self.traced(job.into())).collect()).await
    }

    fn followers(&self) -> MutexGuard<'_, Vec<NewJob>> {
        self.inner.then.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The completion with the followers that the handler named before it, all in the trace of this job.
    pub(crate) fn complete(&self, completion: Completion) -> Result<Completion, Error> {
        // Not taken: a handler may complete again in another transaction, after the first one was rolled back.
        let named = self.followers().clone();
        let then: Vec<NewJob> =
            named.into_iter().chain(completion.then).map(|job| self.traced(job)).collect();
        check_followers(&then)?;
        Ok(Completion { then, ..completion })
    }

    /// The job with this job's trace context.
    fn traced(&self, job: NewJob) -> NewJob {
        match self.trace() {
            Some(trace) => job.trace(&trace),
            None => job,
        }
    }

    /// Returns once a cancel of this job was requested, or its claim was lost. The handler's return value still decides:
    /// `Ok` completes the job, an error leaves it cancelled.
    pub async fn cancelled(&self) {
        let mut cancelled = std::pin::pin!(self.inner.cancel.notified());
        // Listens before it looks: a cancel between the two would be missed otherwise.
        cancelled.as_mut().enable();
        if !self.is_cancelled() {
            cancelled.await;
        }
    }

    /// Whether [`Context::cancelled`] would return at once.
    pub fn is_cancelled(&self) -> bool {
        self.inner.cancelled.load(Ordering::Acquire)
    }

    /// Reports progress: a fraction between 0 and 1 and a short text. Written about once a second; the last report wins, and is
    /// also written when the attempt ends sooner. The history keeps its text.
    pub fn progress(&self, fraction: f32, note: impl Into<String>) {
        let fraction = if fraction.is_finite() { fraction.clamp(0.0, 1.0) } else { 0.0 };
        let note: String = note.into().chars().filter(|c| *c != '\0').take(NOTE_CHARS_MAX).collect();
        self.last_progress().report(fraction, note);
    }

    pub(super) fn last_progress(&self) -> MutexGuard<'_, LastProgress> {
        self.inner.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the handler to stop. `requested`: because of a cancel, not because the claim was lost.
    pub(crate) fn cancel(&self, requested: bool) {
        if requested {
            self.inner.cancel_requested.store(true, Ordering::Release);
        }
        self.inner.cancelled.store(true, Ordering::Release);
        self.inner.cancel.notify_waiters();
    }

    pub(crate) fn cancel_requested(&self) -> bool {
        self.inner.cancel_requested.load(Ordering::Acquire)
    }

    /// The ending that the handler writes in a transaction of its own.
    #[cfg(any(feature = "sqlx", feature = "tokio-postgres"))]
    pub(crate) fn complete_in_transaction(&self, completion: Completion) -> Result<Settlement, Error> {
        let Completion { result, then, next } = self.complete(completion)?;
        self.inner.settled_by_handler.store(true, Ordering::Release);
        let plan = self.recurring().and_then(|recurrence| {
            recurrence.after_run(RunEnd::Done(next), recurrence.clock.now(), fastrand::f64())
        });
        let ending = Ending::Done { history: self.inner.history, ctid: None, result, then };
        let (plan, last_progress) = (plan.map(Box::new), self.last_progress().last());
        Ok(Settlement { claim: self.claim(), ending, plan, in_lane: false, last_progress })
    }

    pub(crate) fn was_settled_by_handler(&self) -> bool {
        self.inner.settled_by_handler.load(Ordering::Acquire)
    }

    pub(crate) fn job(&self) -> &Claimed {
        &self.inner.job
    }

    pub(crate) fn history(&self) -> History {
        self.inner.history
    }
}
