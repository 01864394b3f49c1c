//! The worker: claims what it has slots for, runs handlers, settles in batches, keeps its lease, sweeps.
//!
//! Four loops share a [`Core`]: the claimer starts jobs, the settler writes their endings, the pulse renews the lease and
//! carries progress and cancels, and the sweeper looks after the jobs of others. Each survives a database that is away.

mod core;
mod pulse;
#[cfg(feature = "remote")]
mod remote;
mod settler;

use std::fmt::Display;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use self::core::{Core, Slots};
#[cfg(feature = "remote")]
use crate::backend::{Address, Server};
use crate::claimer::{RetryDelay, run_claimer};
use crate::client::Pitwheel;
use crate::db::Pool;
use crate::error::Error;
use crate::handler::{Context, Handlers};
use crate::hint;
use crate::job::{Job, check_name};
use crate::lease::Registration;
use crate::metrics;
use crate::settle::Verdict;
use crate::{lease, migrate};

/// Connections of the hot path: two claims and two settles at a time when there is much to do. Any of them can do
/// everything, so a worker that gets only one still works.
const CONNECTIONS: usize = 4;
/// Shorter leases than this would be lost to an ordinary hiccup.
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
    queues: Vec<(String, usize)>,
    handlers: Handlers,
    lease: Duration,
    grace: Duration,
    keep_history: Duration,
    hints: bool,
    problem: Option<Error>,
}

/// Where a worker gets its jobs.
enum JobSource {
    Database(Pitwheel),
    #[cfg(feature = "remote")]
    Server(Box<Address>),
    Nowhere,
}

/// What a worker did between its start and its end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Attempts begun.
    pub started: u64,
    /// Attempts whose ending was written.
    pub settled: u64,
    /// Attempts whose ending was refused, because the job was no longer this worker's.
    pub lost: u64,
}

impl Worker {
    /// A worker at the database, without queues or handlers yet.
    pub fn new(pitwheel: &Pitwheel) -> Worker {
        Worker::at(JobSource::Database(pitwheel.clone()))
    }

    /// A worker that gets its jobs from `pitwheel serve`, as in `http://127.0.0.1:7475`, and needs no database. Everything
    /// else is the same, but the lease and how long history is kept are the server's to say.
    #[cfg(feature = "remote")]
    pub fn remote(url: &str) -> Worker {
        match Address::new(url) {
            Ok(address) => Worker::at(JobSource::Server(Box::new(address))),
            Err(problem) => Worker { problem: Some(problem), ..Worker::at(JobSource::Nowhere) },
        }
    }

    /// Shows this token to the server: one of the role `worker`.
    #[cfg(feature = "remote")]
    pub fn token(mut self, secret: &str) -> Worker {
        let shown = match &mut self.source {
            JobSource::Server(address) => address.set_token(secret),
            _ => Err(Error::Invalid("a token is for a remote worker".into())),
        };
        if let Err(error) = shown {
            self.problem.get_or_insert(error);
        }
        self
    }

    fn at(source: JobSource) -> Worker {
        Worker {
            source,
            name: format!("{}:{}", host(), std::process::id()),
            queues: Vec::new(),
            handlers: Handlers::default(),
            lease: Duration::from_secs(30),
            grace: Duration::from_secs(30),
            keep_history: Duration::from_secs(7 * 24 * 3600),
            hints: true,
            problem: None,
        }
    }

    /// Takes jobs from this queue, at most `slots` at a time.
    pub fn queue(mut self, queue: impl Into<String>, slots: usize) -> Worker {
        let queue = queue.into();
        if let Err(error) = check_name("queue", &queue) {
            self.problem.get_or_insert(error);
        }
        if slots == 0 || self.queues.iter().any(|(known, _)| *known == queue) {
            let error = Error::Invalid(format!("queue `{queue}` has no slots, or is given twice"));
            self.problem.get_or_insert(error);
        }
        self.queues.push((queue, slots));
        self
    }

    /// Runs jobs of the handler's type with it: an `async fn(job, context) -> Result<(), E>`, or `Result<Verdict, E>` for a
    /// handler with more to say than done. Jobs of kinds that no handler here knows stay in the queue for a worker that
    /// does.
    pub fn handle<J, F, Fut, V, E>(mut self, handler: F) -> Worker
    where
        J: Job,
        F: Fn(J, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<V, E>> + Send + 'static,
        V: Into<Verdict>,
        E: Display,
    {
        if let Err(error) = self.handlers.add(handler) {
            self.problem.get_or_insert(error);
        }
        self
    }

    /// The name that people see; host and process id by default. It need not be unique.
    pub fn name(mut self, name: impl Into<String>) -> Worker {
        self.name = name.into();
        self
    }

    /// How long the worker may be silent before its jobs are given to others: 30 seconds by default. Use the same for all
    /// workers of a database.
    pub fn lease(mut self, lease: Duration) -> Worker {
        self.lease = lease.max(LEASE_MIN);
        self
    }

    /// How long running jobs may take to finish after the shutdown began, before they are released: 30 seconds by default.
    pub fn grace(mut self, grace: Duration) -> Worker {
        self.grace = grace;
        self
    }

    /// How long finished jobs are remembered: 7 days by default.
    pub fn keep_history(mut self, keep: Duration) -> Worker {
        self.keep_history = keep;
        self
    }

    /// Relies on polling alone. For a connection through a pooler in transaction mode, which cannot carry hints.
    pub fn without_hints(mut self) -> Worker {
        self.hints = false;
        self
    }

    /// Works until `shutdown` ends: then no more jobs are claimed, running ones get their grace time, and what is left is
    /// released. A worker that is told to drain ends when its running jobs have, however long they take. A database that goes away is waited for.
    ///
    /// # Errors
    /// Before the first claim only: no queues or handlers, names that are not names, a schema this version cannot work with.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) -> Result<Stats, Error> {
        if let Some(problem) = self.problem.take() {
            return Err(problem);
        }
        if self.queues.is_empty() || self.handlers.kinds().is_empty() {
            return Err(Error::Invalid("a worker needs at least one queue and one handler".into()));
        }
        let pitwheel = match std::mem::replace(&mut self.source, JobSource::Nowhere) {
            JobSource::Database(pitwheel) => pitwheel,
            #[cfg(feature = "remote")]
            JobSource::Server(address) => return remote::run(self, Server::at(&address), shutdown).await,
            JobSource::Nowhere => return Err(Error::Invalid("a worker needs a database or a server".into())),
        };
        let pool = pitwheel.pool.sibling(CONNECTIONS)?;
        let shut = CancellationToken::new();
        // Also ends when the worker is told to drain.
        let stop = shut.child_token();
        let shutdown = async {
            shutdown.await;
            shut.cancel();
        };
        let mut shutdown = std::pin::pin!(shutdown);
        let registration = self.registration();
        let id = tokio::select! {
            id = enter(&pool, &registration) => id?,
            () = &mut shutdown => return Ok(Stats::default()),
        };
        metrics::expect(&registration.queues, &registration.kinds);
        let (grace, hints) = (self.grace, self.hints);
        let core = Arc::new(Core::new(self, registration, pitwheel, pool, id, stop));
        let listener = async {
            if hints {
                hint::listen(&core.pool, core.listener()).await;
            }
            std::future::pending::<()>().await;
        };
        let ended = CancellationToken::new();
        let work = async {
            run_claimer(&core).await;
            core.finish_within(grace, &shut).await;
            core.settle_queue.close();
        };
        let endings = async {
            settler::run(&core).await;
            ended.cancel();
        };
        let loops =
            async { tokio::join!(work, endings, pulse::run(&core, &ended), pulse::sweep(&core, &ended)) };
        tokio::select! {
            _ = loops => {}
            () = listener => {}
            () = async { shutdown.await; std::future::pending().await } => {}
        }
        let retired = core.pool.run(async |client| lease::retire(&client, core.id()).await).await;
        if let Err(error) = retired {
            tracing::warn!(%error, worker = core.registration.name, "could not sign off; the lease will run out");
        }
        Ok(core.stats())
    }

    /// What it says of itself to the database.
    fn registration(&self) -> Registration {
        Registration {
            name: self.name.clone(),
            lease: self.lease,
            transport: "direct",
            queues: self.queues.iter().map(|(queue, _)| queue.clone()).collect(),
            kinds: self.handlers.kinds(),
            slots: self.queues.iter().map(|(_, slots)| slots).sum(),
            token: None,
        }
    }

    fn slots(&self) -> Vec<Slots> {
        self.queues.iter().map(|(queue, slots)| Slots { queue: queue.clone(), free: *slots }).collect()
    }
}

/// Registers, however long the database is away or has no connection to give.
async fn enter(pool: &Pool, worker: &Registration) -> Result<i64, Error> {
    let mut retry_delay = RetryDelay::default();
    loop {
        let entered = pool.run(async |client| {
            migrate::check(&client).await?;
            lease::register(&client, worker).await
        });
        match entered.await {
            Err(error) if error.is_transient() => {
                tracing::warn!(%error, worker = worker.name, "cannot start yet, will try again");
                retry_delay.wait(&CancellationToken::new()).await;
            }
            other => return other,
        }
    }
}

/// The machine's name as its kernel knows it.
fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").or_else(|_| std::env::var("HOSTNAME"));
    name.map_or_else(|_| "localhost".to_owned(), |name| name.trim().to_owned())
}
