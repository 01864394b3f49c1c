//! Throughput with interference: a backlog, jobs that another worker holds, a pinned vacuum horizon.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::engine::{DRAIN_JOBS, Running, drain, fill, fresh, insert, kind, pin_horizon};
use crate::report::{Row, Sample, Turns};
use crate::session::Session;

/// How long the horizon stays pinned: three times the interval at which a worker reads a queue from its start again.
const PINNED: Duration = Duration::from_secs(180);

/// Drains the first 100,000 jobs of a short and of a long queue.
pub(crate) async fn backlog(url: &str) -> Result<Vec<Row>> {
    let [short, long] = Turns::<2>::measure(async |index| {
        let behind = if index == 0 { 20_000 } else { 1_000_000 };
        let (pitwheel, session) = fresh(url).await?;
        fill(&session, kind(false), DRAIN_JOBS + behind).await?;
        let rate = drain(&pitwheel, DRAIN_JOBS).await?;
        session.close().await?;
        Ok(rate)
    })
    .await?;
    Ok(vec![
        Row::of("drain, 1,000,000 behind", &long, "jobs/s")
            .in_turns_with("20,000 behind", &short)
            .at_least(0.9),
    ])
}

/// Drains jobs behind others that another worker holds.
pub(crate) async fn in_flight(url: &str) -> Result<Vec<Row>> {
    const HELD: [u64; 3] = [0, 10_000, 50_000];
    let [none, some, many] = Turns::<3>::measure(async |index| {
        let (pitwheel, session) = fresh(url).await?;
        fill(&session, kind(false), DRAIN_JOBS + HELD[index]).await?;
        hold(&session, HELD[index]).await?;
        let rate = drain(&pitwheel, DRAIN_JOBS).await?;
        session.close().await?;
        Ok(rate)
    })
    .await?;
    let row = |name: &str, sample: &Sample, share| {
        Row::of(name, sample, "jobs/s").in_turns_with("none in flight", &none).at_least(share)
    };
    Ok(vec![
        row("drain, 10,000 in flight elsewhere", &some, 0.8),
        row("drain, 50,000 in flight elsewhere", &many, 0.7),
    ])
}

/// Assigns the oldest jobs to a worker that never settles them.
async fn hold(session: &Session, jobs: u64) -> Result<()> {
    let sql = format!(
        "insert into pitwheel.worker (name, lease, lease_until) values ('elsewhere', '1 day', now() + interval '1 day');
         update pitwheel.job set holder = (select id from pitwheel.worker), fence = 1, attempt = 1
         where id <= (select min(id) from pitwheel.job) + {jobs} - 1"
    );
    Ok(session.client.batch_execute(&sql).await?)
}

/// One worker drains one load of jobs after the other, first as usual, then while another session keeps a snapshot, so that vacuum
/// can remove no dead row. Each load is timed from its commit to its last run.
pub(crate) async fn pinned(url: &str) -> Result<Vec<Row>> {
    let (pitwheel, session) = fresh(url).await?;
    let running = Running::start(&pitwheel);
    let mut done = 0;
    let mut load = async || {
        insert(&session, kind(false), DRAIN_JOBS).await?;
        let committed = Instant::now();
        done += DRAIN_JOBS;
        running.until(done).await?;
        Ok::<_, anyhow::Error>(DRAIN_JOBS as f64 / committed.elapsed().as_secs_f64())
    };
    let mut free = Vec::new();
    for _ in 0..10 {
        free.push(load().await?);
    }
    let pin = pin_horizon(url).await?;
    let begun = Instant::now();
    let mut held = Vec::new();
    while begun.elapsed() < PINNED {
        held.push(load().await?);
    }
    pin.client.batch_execute("commit").await?;
    pin.close().await?;
    running.stop().await?;
    session.close().await?;
    let last = held[held.len() - held.len().min(5)..].to_vec();
    let median = |values: Vec<f64>| Sample::of(values).map_or(0.0, |sample| sample.median);
    let free = median(free);
    Ok(vec![
        Row::new("drain, horizon pinned for 180 s", median(held), "jobs/s")
            .against("free", free)
            .at_least(0.8),
        Row::new("the last five loads of these", median(last), "jobs/s").against("free", free).at_least(0.8),
    ])
}
