//! A worker with few slots, as most services run it: slots must not stand empty.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use pitwheel::{Context, Worker};

use crate::engine::{Mail, Running, fill, fresh, handling, kind};
use crate::report::{Row, Turns};

const SLOTS: usize = 20;
const NO_OPS: u64 = 100_000;
const NAPS: u64 = 6_000;
const NAP: Duration = Duration::from_millis(10);

pub(crate) async fn few_slots(url: &str) -> Result<Vec<Row>> {
    let mut possible = Vec::new();
    let [no_ops, with_idle, naps] = Turns::<3>::measure(async |index| match index {
        0 => no_ops(url, false).await,
        1 => no_ops(url, true).await,
        _ => {
            let (rate, limit) = sleepers(url).await?;
            possible.push(limit);
            Ok(rate)
        }
    })
    .await?;
    let possible = crate::report::Sample::of(possible).map_or(0.0, |sample| sample.median);
    Ok(vec![
        Row::new("20 slots, no-op jobs", no_ops.median, "jobs/s").spread(&no_ops).at_least(50_000.0),
        Row::new("20 slots, no-op jobs, a second queue is idle", with_idle.median, "jobs/s")
            .spread(&with_idle)
            .against("one queue", no_ops.median)
            .at_least(0.9),
        Row::new("20 slots, handlers of 10 ms", naps.median, "jobs/s")
            .spread(&naps)
            .against("slots ÷ the handlers' own time", possible)
            .at_least(0.95),
    ])
}

async fn no_ops(url: &str, idle_queue: bool) -> Result<f64> {
    let (pitwheel, session) = fresh(url).await?;
    fill(&session, kind(false), NO_OPS).await?;
    let done = Arc::new(AtomicU64::new(0));
    let worker = Worker::new(&pitwheel).queue("default", SLOTS);
    let worker = if idle_queue { worker.queue("idle", SLOTS) } else { worker };
    let running = Running::of(handling(worker, &done), done);
    let rate = rate(&running, NO_OPS).await?;
    let stats = running.stop().await?;
    ensure!(stats.settled == NO_OPS && stats.lost == 0, "not every job was settled: {stats:?}");
    session.close().await?;
    Ok(rate)
}

/// Jobs per second, and what the slots could do at most, by the time that the handlers themselves took.
async fn sleepers(url: &str) -> Result<(f64, f64)> {
    let (pitwheel, session) = fresh(url).await?;
    fill(&session, kind(true), NAPS).await?;
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
    let running = Running::of(Worker::new(&pitwheel).queue("default", SLOTS).handle(handler), done);
    let rate = rate(&running, NAPS).await?;
    running.stop().await?;
    session.close().await?;
    let seconds = busy_us.load(Ordering::Relaxed) as f64 / 1e6 / NAPS as f64;
    Ok((rate, SLOTS as f64 / seconds))
}

/// From the first job to the last one.
async fn rate(running: &Running, jobs: u64) -> Result<f64> {
    running.until(1).await?;
    let started = Instant::now();
    running.until(jobs).await?;
    Ok(jobs as f64 / started.elapsed().as_secs_f64())
}
