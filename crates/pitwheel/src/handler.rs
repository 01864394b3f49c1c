//! Running user code: whatever it does ends in an outcome, never in a dead worker.

use std::any::Any;
use std::collections::HashMap;
use std::fmt::Display;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt;
use serde::de::DeserializeOwned;
use tokio::sync::Notify;

use crate::backend::Backend;
use crate::claim::Claimed;
use crate::ctid::Ctid;
use crate::enqueue::Enqueued;
use crate::error::Error;
use crate::job::{History, Job, NewJob};
use crate::settle::{Cause, Claim, Failure, Outcome, Verdict};
use crate::trace::TraceContext;

type Running = Pin<Box<dyn Future<Output = Outcome> + Send>>;
type Call = Box<dyn Fn(&str, Context) -> Running + Send + Sync>;

/// A kind's handler, with its type forgotten.
pub(crate) struct Handler {
    call: Call,
    pub(crate) history: History,
}

/// The handlers of a worker, by kind.
#[derive(Default)]
pub(crate) struct Handlers {
    by_kind: HashMap<&'static str, Arc<Handler>>,
}

impl Handlers {
    pub(crate) fn add<J, F, Fut, V, E>(&mut self, handler: F) -> Result<(), Error>
    where
        J: Job,
        F: Fn(J, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<V, E>> + Send + 'static,
        V: Into<Verdict>,
        E: Display,
    {
        crate::job::check_name("kind", J::KIND)?;
        let call = move |payload: &str, context: Context| match serde_json::from_str::<J>(payload) {
            Ok(job) => run(handler(job, context)),
            Err(error) => mismatch(&error),
        };
        let handler = Handler { call: Box::new(call), history: J::HISTORY };
        match self.by_kind.insert(J::KIND, Arc::new(handler)) {
            None => Ok(()),
            Some(_) => Err(Error::Invalid(format!("kind `{}` has two handlers", J::KIND))),
        }
    }

    pub(crate) fn get(&self, kind: &str) -> Option<Arc<Handler>> {
        self.by_kind.get(kind).cloned()
    }

    pub(crate) fn kinds(&self) -> Vec<String> {
        self.by_kind.keys().map(|kind| (*kind).to_owned()).collect()
    }
}

impl Handler {
    /// Runs the handler to its outcome: an error, a panic, a timeout and a wrong payload are all outcomes.
    pub(crate) async fn run(&self, context: &Context) -> Outcome {
        let job = &context.inner.job;
        // Deserializing and creating the future are user code too, and may panic.
        let started =
            std::panic::catch_unwind(AssertUnwindSafe(|| (self.call)(&job.payload, context.clone())));
        let running = match started {
            Ok(running) => AssertUnwindSafe(running).catch_unwind(),
            Err(panic) => return failed(Cause::Panic, panic_message(panic.as_ref())),
        };
        let ended = match job.timeout {
            None => running.await,
            Some(limit) => match tokio::time::timeout(limit, running).await {
                Ok(ended) => ended,
                Err(_) => return failed(Cause::Timeout, format!("no end after {limit:?}")),
            },
        };
        ended.unwrap_or_else(|panic| failed(Cause::Panic, panic_message(panic.as_ref())))
    }
}

fn run<V: Into<Verdict>, E: Display>(
    handler: impl Future<Output = Result<V, E>> + Send + 'static,
) -> Running {
    Box::pin(async move {
        match handler.await {
            Ok(verdict) => Outcome::Verdict(verdict.into()),
            // The alternate form, because anyhow keeps the causes for it.
            Err(error) => failed(Cause::Error, format!("{error:#}")),
        }
    })
}

fn mismatch(error: &serde_json::Error) -> Running {
    let message = format!("the payload does not fit the handler's type: {error}");
    Box::pin(std::future::ready(failed(Cause::Payload, message)))
}

fn failed(cause: Cause, message: String) -> Outcome {
    Outcome::Failed(Failure { cause, message })
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without a message").to_owned()
}

/// What a handler knows and may say about the job it runs.
#[derive(Clone)]
pub struct Context {
    inner: Arc<Inner>,
}

struct Inner {
    backend: Arc<Backend>,
    job: Claimed,
    history: History,
    /// To be stopped, and its waker: because somebody asked for it, or because the claim was lost.
    cancelled: AtomicBool,
    cancel: Notify,
    cancel_requested: AtomicBool,
    settled_by_handler: AtomicBool,
    progress: Mutex<Option<(f32, String)>>,
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
                progress: Mutex::new(None),
            }),
        }
    }

    /// The job's id: the idempotency key for effects outside the database.
    pub fn id(&self) -> i64 {
        self.inner.job.claim.id
    }

    /// The claim this run stands on. Its fence grows with every claim of the job.
    pub fn claim(&self) -> Claim {
        self.inner.job.claim
    }

    /// Which attempt this is, counted from 1.
    pub fn attempt(&self) -> u32 {
        self.inner.job.attempt
    }

    /// How many attempts there are.
    pub fn max_attempts(&self) -> u32 {
        self.inner.job.max_attempts
    }

    /// The job's kind.
    pub fn kind(&self) -> &str {
        &self.inner.job.kind
    }

    /// The queue it came from.
    pub fn queue(&self) -> &str {
        &self.inner.job.queue
    }

    /// Its key, if it has one.
    pub fn key(&self) -> Option<&str> {
        self.inner.job.key.as_deref()
    }

    /// Its metadata as the type you expect; `None` when there is none or it is something else.
    pub fn metadata<T: DeserializeOwned>(&self) -> Option<T> {
        self.inner.job.metadata.as_deref().and_then(|json| serde_json::from_str(json).ok())
    }

    /// The trace of whoever enqueued the job. Jobs that the handler enqueues are in the same one.
    pub fn trace(&self) -> Option<TraceContext> {
        TraceContext::of(self.inner.job.metadata.as_deref())
    }

    /// Enqueues a further job, like [`Pitwheel::enqueue`](crate::Pitwheel::enqueue).
    pub async fn enqueue(&self, job: impl Into<NewJob>) -> Result<Enqueued, Error> {
        let enqueued = self.enqueue_many([job]).await?;
        enqueued.first().copied().ok_or_else(|| Error::Invalid("no answer for the job".into()))
    }

    /// Enqueues further jobs, like [`Pitwheel::enqueue_many`](crate::Pitwheel::enqueue_many).
    pub async fn enqueue_many<T: Into<NewJob>>(
        &self,
        jobs: impl IntoIterator<Item = T>,
    ) -> Result<Vec<Enqueued>, Error> {
        let trace = self.trace();
        let traced = |job: NewJob| match &trace {
            Some(trace) => job.trace(trace),
            None => job,
        };
        self.inner.backend.enqueue(jobs.into_iter().map(|job| traced(job.into())).collect()).await
    }

    /// Returns once somebody asked to cancel this job, or its claim was lost. What the handler returns afterwards decides:
    /// `Ok` still completes the job, an error leaves it cancelled.
    pub async fn cancelled(&self) {
        let mut cancelled = std::pin::pin!(self.inner.cancel.notified());
        // Listening before looking: a cancel between the two would go unheard otherwise.
        cancelled.as_mut().enable();
        if !self.is_cancelled() {
            cancelled.await;
        }
    }

    /// Whether [`Context::cancelled`] would return at once.
    pub fn is_cancelled(&self) -> bool {
        self.inner.cancelled.load(Ordering::Acquire)
    }

    /// Says how far the job is: a fraction between 0 and 1 and a short text. Written about once a second, the last one wins.
    pub fn progress(&self, fraction: f32, note: impl Into<String>) {
        let fraction = if fraction.is_finite() { fraction.clamp(0.0, 1.0) } else { 0.0 };
        let note: String = note.into().chars().filter(|c| *c != '\0').take(NOTE_CHARS_MAX).collect();
        *self.inner.progress.lock().unwrap_or_else(PoisonError::into_inner) = Some((fraction, note));
    }

    pub(crate) fn take_progress(&self) -> Option<(f32, String)> {
        self.inner.progress.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

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

    #[cfg(any(feature = "sqlx", feature = "tokio-postgres"))]
    pub(crate) fn settled_by_handler(&self) {
        self.inner.settled_by_handler.store(true, Ordering::Release);
    }

    pub(crate) fn was_settled_by_handler(&self) -> bool {
        self.inner.settled_by_handler.load(Ordering::Acquire)
    }

    pub(crate) fn ctid(&self) -> Ctid {
        self.inner.job.ctid
    }

    pub(crate) fn history(&self) -> History {
        self.inner.history
    }
}

/// A note is one line for a person.
const NOTE_CHARS_MAX: usize = 500;
