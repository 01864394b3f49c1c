//! A steady load on a queue that is nearly empty, the ordinary state of a service.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use pitwheel::{Context, History, Job, NewJob, Pitwheel, Worker};
use pitwheel_devdb::{Options, Server};
use serde::{Deserialize, Serialize};

use crate::disk_probe::DiskProbe;
use crate::engine::{DRAIN_JOBS, Running, drain, fill, fresh, kind, pin_horizon};
use crate::process_stats::server_cpu_us;
use crate::report::{Row, Sample};
use crate::session::Session;

const SLOTS: usize = 200;
/// How often a batch is enqueued, and its size: 3,000 jobs/s.
const EVERY: Duration = Duration::from_millis(10);
const BATCH: u64 = 30;
const BATCHES_PER_SECOND: u64 = 100;
const SECONDS: u64 = 180;
/// The length of the two windows that are compared, at the start and at the end.
const WINDOW: u64 = 30;
const PRODUCER: &str = "producer";

/// Counts what the worker's sessions wrote to end attempts.
const SETTLES: &str = "select coalesce(sum(total_exec_time), 0), coalesce(sum(calls), 0)::float8
    from pg_stat_statements where query like '%delete from pitwheel.job%'";

/// A job that says in which batch it was enqueued.
#[derive(Serialize, Deserialize)]
struct Stamped {
    batch: usize,
}

impl Job for Stamped {
    const KIND: &'static str = "stamped";
    const HISTORY: History = History::FailuresOnly;
}

/// Measured on a private server, which has pg_stat_statements loaded. The one of the other cases, at `others`, is cleared first: it
/// would vacuum and write what they left, beside a load of which every commit is measured.
pub(crate) async fn steady(others: &str) -> Result<Vec<Row>> {
    fresh(others).await?.1.close().await?;
    let options = Options::temporary().setting("shared_preload_libraries", "pg_stat_statements");
    let server = tokio::task::spawn_blocking(move || Server::start(options)).await??;
    let url = server.url();
    let session = Session::open(&url).await?;
    session.client.batch_execute("create extension pg_stat_statements").await?;
    session.close().await?;
    let drained = drain_cpu(&url).await?;
    let free = load(&server, false).await?;
    let pinned = load(&server, true).await?;
    let oldest = |case, load: &Load| Row::new(case, load.oldest_ms / 1000.0, "s").at_most(0.2);
    let sync = |case, load: &Load| Row::new(case, load.sync_ms / 1000.0, "s");
    Ok(vec![
        Row::new("CPU of Postgres per job, 3,000 jobs/s for 180 s, without enqueue", free.cpu_us, "µs")
            .against("drain", drained)
            .at_most(2.5),
        Row::new("the same: enqueue to start, p50", free.waits_ms[0], "ms"),
        Row::new("the same: enqueue to start, p99", free.waits_ms[1], "ms"),
        oldest("the same: oldest waiting job", &free),
        sync("the same: longest fdatasync of a page beside it", &free),
        Row::new("the same, horizon pinned: a settle in the last 30 s", pinned.settle_ms[1], "ms")
            .against("first 30 s", pinned.settle_ms[0])
            .at_most(1.5),
        oldest("the same, horizon pinned: oldest waiting job", &pinned),
        sync("the same, horizon pinned: longest fdatasync of a page beside it", &pinned),
    ])
}

/// CPU time of the server per job of a drain, in microseconds: the median of three.
async fn drain_cpu(url: &str) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..3 {
        let (pitwheel, session) = fresh(url).await?;
        fill(&session, kind(false), DRAIN_JOBS).await?;
        let before = server_cpu_us(&session, PRODUCER).await?;
        drain(&pitwheel, DRAIN_JOBS).await?;
        let after = server_cpu_us(&session, PRODUCER).await?;
        session.close().await?;
        times.push((after - before) / DRAIN_JOBS as f64);
    }
    Ok(Sample::of(times).context("no drain was measured")?.median)
}

/// What a load of 180 s cost.
struct Load {
    /// CPU time of the server per job, without that of the session that enqueues.
    cpu_us: f64,
    /// The mean time of a statement that settles, in the first and in the last 30 s.
    settle_ms: [f64; 2],
    /// The time from the begin of the enqueue to the start of the job, p50 and p99.
    waits_ms: [f64; 2],
    /// The longest time from the end of the enqueue to the start of the job.
    oldest_ms: f64,
    /// The longest time that the disk alone took for a page.
    sync_ms: f64,
}

/// When the enqueue of a batch began and ended.
type Enqueued = (Instant, Instant);

async fn load(server: &Server, pinned: bool) -> Result<Load> {
    let url = server.url();
    let (pitwheel, session) = fresh(&url).await?;
    let pin = if pinned { Some(pin_horizon(&url).await?) } else { None };
    let (done, starts) = (Arc::new(AtomicU64::new(0)), Arc::<Mutex<Vec<(usize, Instant)>>>::default());
    let handler = start_recorder(done.clone(), starts.clone());
    let running = Running::of(Worker::new(&pitwheel).queue("default", SLOTS).handle(handler), done);
    let producer = Pitwheel::connect(&format!("{url}?application_name={PRODUCER}")).await?;
    // The first job waits until the worker has connected; the load begins after it.
    producer.enqueue(NewJob::of(&Stamped { batch: 0 })).await?;
    running.until(1).await?;
    starts.lock().expect("no panic").clear();
    let mut batches: Vec<Enqueued> = Vec::new();
    let probe = DiskProbe::start(server.dir())?;
    let cpu_before = server_cpu_us(&session, PRODUCER).await?;
    let mut settles = vec![settles(&session).await?];
    for (from, to) in [(0, WINDOW), (WINDOW, SECONDS - WINDOW), (SECONDS - WINDOW, SECONDS)] {
        enqueue(&producer, to - from, &mut batches).await?;
        settles.push(self::settles(&session).await?);
    }
    let jobs = SECONDS * BATCHES_PER_SECOND * BATCH;
    running.until(jobs + 1).await?;
    let sync_ms = ms(probe.longest()?);
    let cpu_after = server_cpu_us(&session, PRODUCER).await?;
    let stats = running.stop().await?;
    ensure!(stats.settled == jobs + 1 && stats.lost == 0, "not every job was settled: {stats:?}");
    if let Some(pin) = pin {
        pin.client.batch_execute("commit").await?;
        pin.close().await?;
    }
    session.close().await?;
    let starts = std::mem::take(&mut *starts.lock().expect("no panic"));
    let mut waits: Vec<f64> = starts.iter().map(|(batch, start)| ms(*start - batches[*batch].0)).collect();
    waits.sort_by(f64::total_cmp);
    let waited = starts.iter().map(|(batch, start)| start.saturating_duration_since(batches[*batch].1));
    let oldest_ms = ms(waited.max().unwrap_or_default());
    Ok(Load {
        cpu_us: (cpu_after - cpu_before) / jobs as f64,
        settle_ms: [mean(settles[0], settles[1])?, mean(settles[2], settles[3])?],
        waits_ms: [waits[waits.len() / 2], waits[waits.len() * 99 / 100]],
        oldest_ms,
        sync_ms,
    })
}

/// A handler that notes when each job started.
fn start_recorder(
    done: Arc<AtomicU64>,
    starts: Arc<Mutex<Vec<(usize, Instant)>>>,
) -> impl Fn(Stamped, Context) -> std::future::Ready<Result<(), String>> {
    move |job, _| {
        starts.lock().expect("no panic").push((job.batch, Instant::now()));
        done.fetch_add(1, Ordering::Relaxed);
        std::future::ready(Ok(()))
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// Enqueues 3,000 jobs a second. What was delayed is made up for, so that the rate holds.
async fn enqueue(producer: &Pitwheel, seconds: u64, batches: &mut Vec<Enqueued>) -> Result<()> {
    let begin = Instant::now();
    for n in 0..seconds * BATCHES_PER_SECOND {
        tokio::time::sleep_until((begin + EVERY * n as u32).into()).await;
        let (begun, job) = (Instant::now(), Stamped { batch: batches.len() });
        producer.enqueue_many((0..BATCH).map(|_| NewJob::of(&job))).await?;
        batches.push((begun, Instant::now()));
    }
    Ok(())
}

/// Milliseconds and calls of the statements that settle, so far.
async fn settles(session: &Session) -> Result<(f64, f64)> {
    let row = session.client.query_one(SETTLES, &[]).await?;
    Ok((row.get(0), row.get(1)))
}

fn mean(from: (f64, f64), to: (f64, f64)) -> Result<f64> {
    let calls = Some(to.1 - from.1).filter(|calls| *calls > 0.0).context("no settle was counted")?;
    Ok((to.0 - from.0) / calls)
}
