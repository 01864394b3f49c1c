//! Building and running a worker.

use std::fmt::Display;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::client::Pitwheel;
use crate::engine::hint;
use crate::engine::lease::{self, Registration};
use crate::engine::maintenance::lease_limit;
use crate::error::Error;
use crate::job::claim::{ClaimRefusal, QueueSlots};
use crate::job::ending::Verdict;
use crate::job::new_job::{Job, check_name};
use crate::metrics;
use crate::worker::backend::Backend;
use crate::worker::context::Context;
use crate::worker::core::Core;
use crate::worker::handler::Handlers;
use crate::worker::heartbeat::Renewals;
#[cfg(feature = "remote")]
use crate::worker::remote::{self, server::Address};
use crate::worker::run::{OnlyJob, enter, run_loops};
use crate::worker::slots::Slots;
use crate::worker::stats::Stats;

/// Connections of the hot path: up to two claims and two settles at a time. Each of them can do everything, so a worker that
/// gets only one connection still works.
const CONNECTIONS: usize = 4;
/// Sweeps need one connection at a time. Renewals have another one.
const SWEEP_CONNECTIONS: usize = 1;
/// A shorter lease would be lost to an ordinary delay.
const LEASE_MIN: Duration = Duration::from_millis(500);

/// Runs jobs in this process.
///
/// ```no_run
/// # use pitwheel::{Context, Job, Pitwheel, Worker};
/// # #[derive(serde::Serialize, serde::Deserialize)] struct Greet;
/// # impl Job for Greet { const KIND: &str = "greet"; }
/// # async fn greet(_: Greet, _: Context) -> Result<(), std::io::Error> { Ok(()) }
/// # async fn example(pitwheel: Pitwheel) -> Result<(), pitwheel::Error> {
/// Worker::new(&pitwheel)
///     .queue("default", 20)
///     .queue("mail", 5)
///     .handle(greet)
///     .run(async { tokio::signal::ctrl_c().await.unwrap_or_default() })
///     .await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a worker does nothing until it runs"]
pub struct Worker {
    source: JobSource,
    name: String,
    queues: Vec<QueueSlots>,
    handlers: Handlers,
    lease: Duration,
    grace: Duration,
    keep_history: Duration,
    hints: bool,
    /// How many jobs to run in all; `None`: without limit.
    budget: Option<usize>,
    /// The first mistake in what the builder was given; `run` returns it.
    problem: Option<Error>,
}

/// Where a worker gets its jobs.
enum JobSource {
    Database(Pitwheel),
    #[cfg(feature = "remote")]
    Server(Box<Address>),
    /// The address of the server was refused.
    None,
}

impl Worker {
    /// A worker at the database, without queues or handlers yet.
    pub fn new(pitwheel: &Pitwheel) -> Worker {
        Worker::with_source(JobSource::Database(pitwheel.clone()))
    }

    /// A worker that gets its jobs from `pitwheel serve`, as in `http://127.0.0.1:7475`, and needs no database. Everything
    /// else is the same, but the server decides the lease and how long history is kept.
    #[cfg(feature = "remote")]
    pub fn remote(url: &str) -> Worker {
        match Address::new(url) {
            Ok(address) => Worker::with_source(JobSource::Server(Box::new(address))),
            Err(problem) => Worker { problem: Some(problem), ..Worker::with_source(JobSource::None) },
        }
    }

    /// Sends this token to the server. It needs the role `worker`.
    #[cfg(feature = "remote")]
    pub fn token(mut self, secret: &str) -> Worker {
        let set = match &mut self.source {
            JobSource::Server(address) => address.set_token(secret),
            _ => Err(Error::Invalid("a token is for a remote worker".into())),
        };
        self.note(set);
        self
    }

    fn with_source(source: JobSource) -> Worker {
        Worker {
            source,
            name: format!("{}:{}", host(), std::process::id()),
            queues: Vec::new(),
            handlers: Handlers::default(),
            lease: Duration::from_secs(30),
            grace: Duration::from_secs(30),
            keep_history: Duration::from_secs(7 * 24 * 3600),
            hints: true,
            budget: None,
            problem: None,
        }
    }

    /// Takes jobs from this queue, at most `slots` at a time.
    pub fn queue(mut self, queue: impl Into<String>, slots: usize) -> Worker {
        let queue = queue.into();
        self.note(check_name("queue", &queue));
        if slots == 0 || self.queues.iter().any(|known| known.queue == queue) {
            self.note(Err(Error::Invalid(format!("queue `{queue}` has no slots, or is given twice"))));
        }
        self.queues.push(QueueSlots { queue, slots });
        self
    }

    /// Runs jobs of the handler's type with it: an `async fn(job, context) -> Result<(), E>`, or `Result<Verdict, E>` for a
    /// handler that does not simply complete. Jobs of kinds without a handler here stay in the queue for other workers.
    ///
    /// A handler should not block its thread: run what does in [`tokio::task::spawn_blocking`]. A worker at the database whose
    /// handlers block all threads of their runtime keeps its lease, but its other jobs wait, and no timeout or cancel reaches a handler.
    pub fn handle<J, F, Fut, V, E>(mut self, handler: F) -> Worker
    where
        J: Job,
        F: Fn(J, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<V, E>> + Send + 'static,
        V: Into<Verdict>,
        E: Display,
    {
        let added = self.handlers.add(handler);
        self.note(added);
        self
    }

    /// The name that people see; host and process id by default. It need not be unique.
    pub fn name(mut self, name: impl Into<String>) -> Worker {
        self.name = name.into();
        self
    }

    /// How long the worker may go without a renewal before its jobs are given to others: 30 seconds by default. Use the same
    /// for all workers of a database.
    pub fn lease(mut self, lease: Duration) -> Worker {
        self.lease = lease.max(LEASE_MIN);
        self
    }

    /// How long running jobs may take to finish after the shutdown began, before they are released: 30 seconds by default.
    pub fn grace(mut self, grace: Duration) -> Worker {
        self.grace = grace;
        self
    }

    /// How long finished jobs are kept in the history: 7 days by default.
    pub fn keep_history(mut self, keep: Duration) -> Worker {
        self.keep_history = keep;
        self
    }

    /// Polls only. For a connection through a pooler in transaction mode, which cannot pass hints on.
    pub fn without_hints(mut self) -> Worker {
        self.hints = false;
        self
    }

    /// Works until `shutdown` ends: then it claims no more, running jobs get their grace time, and what is left is released.
    /// A worker that is drained ends when its running jobs have ended, however long they take. If the database goes away,
    /// the worker waits for it.
    ///
    /// # Errors
    /// Before the first claim only: no queues or handlers, invalid names, a schema this version cannot work with.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) -> Result<Stats, Error> {
        if let Some(problem) = self.problem.take() {
            return Err(problem);
        }
        if self.queues.is_empty() || self.handlers.kinds().is_empty() {
            return Err(Error::Invalid("a worker needs at least one queue and one handler".into()));
        }
        match std::mem::replace(&mut self.source, JobSource::None) {
            JobSource::Database(pitwheel) => self.run_at_database(pitwheel, shutdown, None).await,
            #[cfg(feature = "remote")]
            JobSource::Server(address) => {
                let worker = remote::Remote::new(&address, self.name, self.handlers);
                worker.run(&self.queues, self.grace, shutdown).await
            }
            JobSource::None => Err(Error::Invalid("a worker needs a database or a server".into())),
        }
    }

    /// Runs jobs that are due now, at most `max`, and ends when they have ended or nothing more is due. Jobs that become due
    /// meanwhile may be among them. `shutdown` ends it earlier, as in [`Worker::run`].
    ///
    /// # Errors
    /// As for [`Worker::run`]; and for a remote worker, which cannot know what is due.
    pub async fn run_due(mut self, max: usize, shutdown: impl Future<Output = ()>) -> Result<Stats, Error> {
        if !matches!(self.source, JobSource::Database(_)) {
            self.note(Err(Error::Invalid("a worker that runs what is due needs a database".into())));
        }
        if max == 0 && self.problem.is_none() {
            return Ok(Stats::default());
        }
        self.budget = Some(max);
        self.run(shutdown).await
    }

    /// Claims this job, also before its time, runs it, and ends when it has ended. Of several callers one gets the job. The worker
    /// needs a handler for its kind, and no queue. `shutdown` ends it earlier, as in [`Worker::run`].
    ///
    /// # Errors
    /// As for [`Worker::run`]; [`Error::NotFound`] if there is no such job.
    pub async fn run_job(
        mut self,
        id: i64,
        shutdown: impl Future<Output = ()>,
    ) -> Result<Result<Stats, ClaimRefusal>, Error> {
        if let Some(problem) = self.problem.take() {
            return Err(problem);
        }
        if self.handlers.kinds().is_empty() {
            return Err(Error::Invalid("a worker needs at least one handler".into()));
        }
        let pitwheel = match std::mem::replace(&mut self.source, JobSource::None) {
            JobSource::Database(pitwheel) => pitwheel,
            #[cfg(feature = "remote")]
            JobSource::Server(address) => {
                let worker = remote::Remote::new(&address, self.name, self.handlers);
                return worker.run_job(id, self.grace, shutdown).await;
            }
            JobSource::None => return Err(Error::Invalid("a worker needs a database or a server".into())),
        };
        self.queues.clear();
        let mut found = None;
        let stats = self.run_at_database(pitwheel, shutdown, Some((id, &mut found))).await?;
        match found {
            Some(Err(error)) => Err(error),
            Some(Ok(Some(refusal))) => Ok(Err(refusal)),
            _ => Ok(Ok(stats)),
        }
    }

    async fn run_at_database(
        self,
        pitwheel: Pitwheel,
        shutdown: impl Future<Output = ()>,
        only: Option<OnlyJob<'_>>,
    ) -> Result<Stats, Error> {
        let renewals = Renewals::start(&pitwheel, self.lease)?;
        let sweep_pool = pitwheel.pool_for_loops(SWEEP_CONNECTIONS, lease_limit(self.lease))?;
        let pool = pitwheel.pool_for_loops(CONNECTIONS, Duration::MAX)?;
        let pool = pool.sharing_with(&sweep_pool).sharing_with(renewals.pool());
        let shut = CancellationToken::new();
        let shutdown = async {
            shutdown.await;
            shut.cancel();
        };
        let mut shutdown = std::pin::pin!(shutdown);
        let registration = self.registration();
        let id = tokio::select! {
            id = enter(&sweep_pool, &registration) => id?,
            () = &mut shutdown => return Ok(Stats::default()),
        };
        metrics::expect(&registration.queues, &registration.kinds);
        // The token also ends when the worker is drained.
        let stop = shut.child_token();
        let backend = Backend::Database(pitwheel);
        let core = Arc::new(Core::new(
            registration,
            id,
            (pool, sweep_pool),
            backend,
            self.handlers,
            Slots::new(self.queues, self.budget),
            stop,
        ));
        let listening = async {
            if self.hints {
                hint::listen(&core.pool, core.hint_listener()).await;
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = run_loops(&core, renewals, &shut, self.grace, self.keep_history, only) => {}
            () = listening => {}
            () = async { shutdown.await; std::future::pending().await } => {}
        }
        let retired = core.sweep_pool.run(async |client| lease::retire(&client, core.id()).await).await;
        if let Err(error) = retired {
            tracing::warn!(%error, worker = core.name(), "could not sign off; the lease will expire");
        }
        Ok(core.counters.stats())
    }

    /// What it registers with.
    fn registration(&self) -> Registration {
        Registration {
            name: self.name.clone(),
            lease: self.lease,
            transport: "direct",
            queues: self.queues.iter().map(|queue| queue.queue.clone()).collect(),
            kinds: self.handlers.kinds(),
            slots: self.queues.iter().map(|queue| queue.slots).sum(),
            token: None,
        }
    }

    /// Keeps the first mistake.
    fn note(&mut self, checked: Result<(), Error>) {
        if let Err(error) = checked {
            self.problem.get_or_insert(error);
        }
    }
}

/// The name of this machine.
fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").or_else(|_| std::env::var("HOSTNAME"));
    name.map_or_else(|_| "localhost".to_owned(), |name| name.trim().to_owned())
}
