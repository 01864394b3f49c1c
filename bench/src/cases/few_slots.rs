//! A worker with few slots, as most services run it: slots must not stand empty.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use pitwheel::{Context, Worker};

use crate::child_process::ChildProcess;
use crate::engine::{Mail, Running, fill, fresh, handling, kind};
use crate::report::{Row, Sample, Turns};

const SLOTS: usize = 20;
const NO_OPS: u64 = 100_000;
const REMOTE_NO_OPS: u64 = 20_000;
const NAPS: u64 = 6_000;
const NAP: Duration = Duration::from_millis(10);

/// A worker in this process.
pub(crate) async fn few_slots(url: &str) -> Result<Vec<Row>> {
    let mut possible = Vec::new();
    let [no_ops, with_idle, naps] = Turns::<3>::measure(async |index| {
        let (pitwheel, session) = fresh(url).await?;
        fill(&session, kind(index == 2), if index == 2 { NAPS } else { NO_OPS }).await?;
        let worker = Worker::new(&pitwheel).queue("default", SLOTS);
        let rate = match index {
            0 => no_ops(worker, NO_OPS).await?,
            1 => no_ops(worker.queue("idle", SLOTS), NO_OPS).await?,
            _ => naps(worker, &mut possible).await?,
        };
        session.close().await?;
        Ok(rate)
    })
    .await?;
    Ok(vec![
        Row::of("20 slots, no-op jobs", &no_ops, "jobs/s").at_least(50_000.0),
        Row::of("20 slots, no-op jobs, a second queue is idle", &with_idle, "jobs/s")
            .in_turns_with("one queue", &no_ops)
            .at_least(0.9),
        naps_row("20 slots, handlers of 10 ms", &naps, possible)?.at_least(0.95),
    ])
}

/// A worker that gets its jobs from a server in a process of its own.
pub(crate) async fn remote_few_slots(url: &str) -> Result<Vec<Row>> {
    let mut possible = Vec::new();
    let [no_ops, naps] = Turns::<2>::measure(async |index| {
        let (_, session) = fresh(url).await?;
        fill(&session, kind(index == 1), if index == 1 { NAPS } else { REMOTE_NO_OPS }).await?;
        let (server, address) = ChildProcess::serve(url).await?;
        let worker = Worker::remote(&address).queue("default", SLOTS);
        let rate = if index == 0 {
            no_ops(worker, REMOTE_NO_OPS).await?
        } else {
            naps(worker, &mut possible).await?
        };
        server.stop().await?;
        session.close().await?;
        Ok(rate)
    })
    .await?;
    Ok(vec![
        Row::of("one remote worker, 20 slots, no-op jobs", &no_ops, "jobs/s").at_least(15_000.0),
        naps_row("one remote worker, 20 slots, handlers of 10 ms", &naps, possible)?.at_least(0.9),
    ])
}

fn naps_row(case: &str, naps: &Sample, possible: Vec<f64>) -> Result<Row> {
    let possible = Sample::of(possible).context("no worker was measured")?;
    Ok(Row::of(case, naps, "jobs/s").in_turns_with("slots ÷ the handlers' own time", &possible))
}

/// Jobs per second.
async fn no_ops(worker: Worker, jobs: u64) -> Result<f64> {
    let done = Arc::new(AtomicU64::new(0));
    rate(Running::of(handling(worker, &done), done), jobs).await
}

/// Jobs per second. Adds to `possible` what the slots could do at most, by the time that the handlers themselves took.
async fn naps(worker: Worker, possible: &mut Vec<f64>) -> Result<f64> {
    let (done, busy_us) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let handler = {
        let (done, busy_us) = (done.clone(), busy_us.clone());
        move |_: Mail, _: Context| {
            let (done, busy_us) = (done.clone(), busy_us.clone());
            async move {
                let started = Instant::now();
                tokio::time::sleep(NAP).await;
                busy_us.fetch_add(started.elapsed().as_micros() as u64, Ordering::Relaxed);
                done.fetch_add(1, Ordering::Relaxed);
                Ok::<_, String>(())
            }
        }
    };
    let rate = rate(Running::of(worker.handle(handler), done), NAPS).await?;
    let seconds = busy_us.load(Ordering::Relaxed) as f64 / 1e6 / NAPS as f64;
    possible.push(SLOTS as f64 / seconds);
    Ok(rate)
}

/// From the first job to the last one. All jobs must have been settled when the worker has stopped.
async fn rate(running: Running, jobs: u64) -> Result<f64> {
    running.until(1).await?;
    let started = Instant::now();
    running.until(jobs).await?;
    let rate = jobs as f64 / started.elapsed().as_secs_f64();
    let stats = running.stop().await?;
    ensure!(stats.settled == jobs && stats.lost == 0, "not every job was settled: {stats:?}");
    Ok(rate)
}
