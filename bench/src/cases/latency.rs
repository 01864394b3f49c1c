//! The time from the enqueue of a job to its start.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use pitwheel::{Context, Job, Pitwheel, Worker};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

use crate::child_process::ChildProcess;
use crate::engine::{Running, batch, fresh, kind};
use crate::raw::PAYLOAD;
use crate::raw_latency::raw_latency;
use crate::report::{Row, Sample};

const SAMPLES: usize = 300;
const RAW_SAMPLES: usize = 100;

#[derive(Serialize, Deserialize)]
struct Ping;

impl Job for Ping {
    const KIND: &'static str = "ping";
}

/// A worker in this process, with hints and with polling alone.
pub(crate) async fn latency(url: &str) -> Result<Vec<Row>> {
    let (pitwheel, session) = fresh(url).await?;
    let hinted = idle_queue(Worker::new(&pitwheel), hinting(url).await?).await?;
    session.close().await?;

    let (pitwheel, session) = fresh(url).await?;
    let silent = async || {
        session.client.execute("select pitwheel.enqueue('ping', 'null')", &[]).await?;
        Ok(())
    };
    let polled = idle_queue(Worker::new(&pitwheel).without_hints(), silent).await?;
    session.close().await?;
    let raw = percentiles(raw_latency(url, RAW_SAMPLES, pause).await?);
    Ok(vec![
        Row::new("enqueue to start, idle, hints, p50", hinted.p50, "ms").at_most(2.0),
        Row::new("enqueue to start, idle, hints, p99", hinted.p99, "ms").at_most(15.0),
        Row::new("raw insert, hint and claim, idle, p50", raw.p50, "ms"),
        Row::new("enqueue to start, idle, polling, p50", polled.p50, "ms").at_most(30.0),
    ])
}

/// A worker that gets its jobs from a server in a process of its own.
pub(crate) async fn remote_latency(url: &str) -> Result<Vec<Row>> {
    let (_, session) = fresh(url).await?;
    let (server, address) = ChildProcess::serve(url).await?;
    let waits = idle_queue(Worker::remote(&address), hinting(url).await?).await?;
    server.stop().await?;
    session.close().await?;
    Ok(vec![
        Row::new("enqueue to start, idle, remote worker, p50", waits.p50, "ms").at_most(3.0),
        Row::new("enqueue to start, idle, remote worker, p99", waits.p99, "ms").at_most(20.0),
    ])
}

/// Enqueues with a handle that has no listener, as an application in another process does.
async fn hinting(url: &str) -> Result<impl AsyncFn() -> Result<()>> {
    let producer = Pitwheel::connect(url).await?;
    Ok(async move || {
        producer.enqueue(&Ping).await?;
        Ok(())
    })
}

/// Percentiles of the wait, in milliseconds.
struct Waits {
    p50: f64,
    p99: f64,
}

/// Measures from the call of `enqueue` to the first line of the handler, on a queue without other jobs.
async fn idle_queue(worker: Worker, enqueue: impl AsyncFn() -> Result<()>) -> Result<Waits> {
    let (started, mut starts) = mpsc::unbounded_channel();
    let started = Arc::new(started);
    let handler = move |_: Ping, _: Context| {
        let _ = started.send(Instant::now());
        std::future::ready(Ok::<_, String>(()))
    };
    let (stop, stopped) = oneshot::channel::<()>();
    let task = tokio::spawn(worker.queue("default", 10).handle(handler).run(async {
        let _ = stopped.await;
    }));
    // The first is not counted: it also waits for the start of the worker.
    enqueue().await?;
    starts.recv().await.context("the worker ended")?;
    let mut waits = Vec::new();
    for sample in 0..SAMPLES {
        tokio::time::sleep(pause(sample)).await;
        let asked = Instant::now();
        enqueue().await?;
        let start = starts.recv().await.context("the worker ended")?;
        waits.push(start.saturating_duration_since(asked).as_secs_f64() * 1000.0);
    }
    let _ = stop.send(());
    task.await??;
    Ok(percentiles(waits))
}

/// Long enough for a worker to be idle again, and never in step with its polling.
fn pause(sample: usize) -> Duration {
    Duration::from_micros(100_000 + 137 * sample as u64)
}

fn percentiles(mut waits: Vec<f64>) -> Waits {
    waits.sort_by(f64::total_cmp);
    Waits { p50: waits[waits.len() / 2], p99: waits[waits.len() * 99 / 100] }
}

/// A transaction enqueues, stays open while a worker drains a busy queue, and commits. Measures from the commit to the claim.
pub(crate) async fn late(url: &str) -> Result<Vec<Row>> {
    let mut waits = Vec::new();
    for _ in 0..5 {
        waits.push(late_once(url).await?);
    }
    let worst = waits.iter().copied().fold(0.0, f64::max);
    let median = Sample::of(waits).map_or(0.0, |sample| sample.median);
    Ok(vec![
        Row::new("committed late, below the bound, to start: worst of 5", worst, "s").at_most(1.5),
        Row::new("committed late, below the bound, to start: median", median, "s").at_most(1.5),
    ])
}

async fn late_once(url: &str) -> Result<f64> {
    let (pitwheel, session) = fresh(url).await?;
    let running = Running::start(&pitwheel);
    let enqueue = format!("begin; select pitwheel.enqueue('{}', '{PAYLOAD}', key => 'late')", kind(false));
    session.client.batch_execute(&enqueue).await?;
    let begun = Instant::now();
    let mut enqueued = 0;
    while begun.elapsed() < Duration::from_secs(4) {
        pitwheel.enqueue_many(batch(kind(false), 100)).await?;
        enqueued += 100;
    }
    let there = "select count(*) from pitwheel.job where key = 'late'";
    let there: i64 = session.client.query_one(there, &[]).await?.get(0);
    ensure!(there == 1, "the late job was not enqueued");
    session.client.batch_execute("commit").await?;
    let committed = Instant::now();
    let busy = async {
        loop {
            if let Err(error) = pitwheel.enqueue_many(batch(kind(false), 100)).await {
                return error;
            }
        }
    };
    let seen = async {
        let late = "select count(*) from pitwheel.job where key = 'late' and holder is null";
        while session.client.query_one(late, &[]).await?.get::<_, i64>(0) > 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok::<_, anyhow::Error>(())
    };
    tokio::select! {
        error = busy => return Err(error.into()),
        seen = seen => seen?,
    }
    let wait = committed.elapsed().as_secs_f64();
    running.until(enqueued).await?;
    running.stop().await?;
    session.close().await?;
    Ok(wait)
}
