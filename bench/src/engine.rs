//! The engine under test: a new schema, jobs in it, and one worker with handlers that do nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use pitwheel::{Context, History, Job, NewJob, Pitwheel, Stats, Worker};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::raw::PAYLOAD;
use crate::report::Sample;
use crate::session::Session;

/// Slots of the worker: as many jobs as four claims return, so that claiming, running and settling overlap.
const SLOTS: usize = 2000;

/// Jobs of a drain.
pub(crate) const DRAIN_JOBS: u64 = 100_000;

/// For what is measured in two databases in turns.
const SECOND_DATABASE: &str = "pitwheel_bench_second";

/// The payload of 100 bytes, the same as that of the raw loop.
#[derive(Serialize, Deserialize)]
pub(crate) struct Mail {
    user_id: u64,
    email: String,
    template: String,
    locale: String,
    tries: u8,
}

/// Kept in the history when done.
impl Job for Mail {
    const KIND: &'static str = "mail";
}

/// The same payload; not kept in the history when done.
#[derive(Serialize, Deserialize)]
pub(crate) struct QuietMail(Mail);

impl Job for QuietMail {
    const KIND: &'static str = "quiet_mail";
    const HISTORY: History = History::FailuresOnly;
}

/// The kind with or without history.
pub(crate) fn kind(history: bool) -> &'static str {
    if history { Mail::KIND } else { QuietMail::KIND }
}

/// `size` new jobs of one kind.
pub(crate) fn batch(kind: &str, size: usize) -> Vec<NewJob> {
    vec![NewJob::raw(kind, PAYLOAD); size]
}

/// Creates the schema anew, without jobs, and opens a session to query it. Everything is written to disk before, also what the file
/// system still has to do for the schema that was dropped: commits would wait for it, some for 0.2 s.
pub(crate) async fn fresh(url: &str) -> Result<(Pitwheel, Session)> {
    let session = Session::open(url).await?;
    session
        .client
        .batch_execute("set client_min_messages = error; drop schema if exists pitwheel cascade")
        .await?;
    let pitwheel = Pitwheel::connect(url).await?;
    pitwheel.migrate().await?;
    session.client.batch_execute("checkpoint").await?;
    let synced = tokio::task::spawn_blocking(|| std::process::Command::new("sync").status()).await??;
    ensure!(synced.success(), "sync ended with {synced}");
    Ok((pitwheel, session))
}

/// The URL of another database on the same server, without anything in it.
pub(crate) async fn second_database(url: &str) -> Result<String> {
    let session = Session::open(url).await?;
    for statement in ["drop database if exists", "create database"] {
        session.client.batch_execute(&format!("{statement} {SECOND_DATABASE}")).await?;
    }
    session.close().await?;
    let (server, database) = url.rsplit_once('/').context("the URL names no database")?;
    let options = database.find('?').map_or("", |at| &database[at..]);
    Ok(format!("{server}/{SECOND_DATABASE}{options}"))
}

/// Inserts jobs, then vacuums and analyzes the table.
pub(crate) async fn fill(session: &Session, kind: &str, jobs: u64) -> Result<()> {
    insert(session, kind, jobs).await?;
    Ok(session.client.batch_execute("vacuum analyze pitwheel.job").await?)
}

/// Inserts jobs in one statement, each with its own time.
pub(crate) async fn insert(session: &Session, kind: &str, jobs: u64) -> Result<()> {
    insert_due_in(session, kind, jobs, "0").await
}

/// Inserts jobs that are due after this time.
pub(crate) async fn insert_due_in(session: &Session, kind: &str, jobs: u64, delay: &str) -> Result<()> {
    let sql = format!(
        "insert into pitwheel.job (kind, payload, queue, run_at, enqueued_at, priority, max_attempts)
         select '{kind}', '{PAYLOAD}', 'default', clock_timestamp() + interval '{delay}', clock_timestamp(), 0, 20
         from generate_series(1, {jobs})"
    );
    Ok(session.client.batch_execute(&sql).await?)
}

/// Opens a session that keeps its snapshot, so that vacuum can remove no row that was deleted since.
pub(crate) async fn pin_horizon(url: &str) -> Result<Session> {
    let pin = Session::open(url).await?;
    let snapshot = "begin isolation level repeatable read; select count(*) from pitwheel.worker";
    pin.client.batch_execute(snapshot).await?;
    Ok(pin)
}

/// A running worker, and the number of jobs it has run.
pub(crate) struct Running {
    done: Arc<AtomicU64>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<Stats, pitwheel::Error>>,
}

impl Running {
    pub(crate) fn start(pitwheel: &Pitwheel) -> Running {
        let done = Arc::new(AtomicU64::new(0));
        Running::of(handling(Worker::new(pitwheel).queue("default", SLOTS), &done), done)
    }

    /// Starts a worker whose handlers count in `done`.
    pub(crate) fn of(worker: Worker, done: Arc<AtomicU64>) -> Running {
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(worker.run(async {
            let _ = stopped.await;
        }));
        Running { done, stop, task }
    }

    /// Returns when this many jobs have run.
    pub(crate) async fn until(&self, jobs: u64) -> Result<()> {
        while self.done.load(Ordering::Relaxed) < jobs {
            ensure!(!self.task.is_finished(), "the worker ended before all jobs had run");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    /// Stops the worker, after everything it ran has been settled.
    pub(crate) async fn stop(self) -> Result<Stats> {
        let _ = self.stop.send(());
        Ok(self.task.await??)
    }
}

/// A worker with handlers that only count.
pub(crate) fn handling(worker: Worker, done: &Arc<AtomicU64>) -> Worker {
    worker.handle(counter::<Mail>(done.clone())).handle(counter::<QuietMail>(done.clone()))
}

fn counter<J>(done: Arc<AtomicU64>) -> impl Fn(J, Context) -> std::future::Ready<Result<(), String>> {
    move |_, _| {
        done.fetch_add(1, Ordering::Relaxed);
        std::future::ready(Ok(()))
    }
}

/// The median of three drains of a queue that `refill` fills before each. For a comparison whose parts take long to set up: the speed of
/// the machine changes within such a turn.
pub(crate) async fn median_drain(
    pitwheel: &Pitwheel,
    mut refill: impl AsyncFnMut() -> Result<()>,
) -> Result<f64> {
    let mut rates = Vec::new();
    for _ in 0..3 {
        refill().await?;
        rates.push(drain(pitwheel, DRAIN_JOBS).await?);
    }
    Ok(Sample::of(rates).map_or(0.0, |sample| sample.median))
}

/// Jobs per second, from the first run to the last settle. As with the raw loop, connections are open before the clock starts.
pub(crate) async fn drain(pitwheel: &Pitwheel, jobs: u64) -> Result<f64> {
    let running = Running::start(pitwheel);
    running.until(1).await?;
    let started = Instant::now();
    running.until(jobs).await?;
    let stats = running.stop().await?;
    ensure!(stats.settled >= jobs && stats.lost == 0, "not every job was settled: {stats:?}");
    Ok(jobs as f64 / started.elapsed().as_secs_f64())
}
