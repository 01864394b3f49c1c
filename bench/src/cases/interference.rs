//! Throughput with interference: a backlog, jobs that another worker holds, a pinned vacuum horizon.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::engine::{
    DRAIN_JOBS, Running, drain, fill, fresh, insert, kind, median_drain, pin_horizon, second_database,
};
use crate::report::{Row, Sample, Turns};
use crate::session::Session;

/// How long the horizon stays pinned: three times the interval at which a worker reads a queue from its start again.
const PINNED: Duration = Duration::from_secs(180);

/// Drains the first 100,000 jobs of a short and of a long queue.
pub(crate) async fn backlog(url: &str) -> Result<Vec<Row>> {
    let [short, long] = Turns::<2>::measure(async |index| {
        let behind = if index == 0 { 20_000 } else { 1_000_000 };
        let (pitwheel, session) = fresh(url).await?;
        insert(&session, kind(false), behind).await?;
        let refill = async || fill(&session, kind(false), DRAIN_JOBS).await;
        let rate = median_drain(&pitwheel, refill).await?;
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

/// Loads that are compared at the end of the pin.
const LAST: usize = 5;

/// A worker that drains one load of jobs after the other.
struct Loads {
    session: Session,
    running: Running,
    done: u64,
}

impl Loads {
    async fn start(url: &str) -> Result<Loads> {
        let (pitwheel, session) = fresh(url).await?;
        Ok(Loads { session, running: Running::start(&pitwheel), done: 0 })
    }

    /// Jobs per second, from the commit of a load to its last run.
    async fn next(&mut self) -> Result<f64> {
        insert(&self.session, kind(false), DRAIN_JOBS).await?;
        let committed = Instant::now();
        self.done += DRAIN_JOBS;
        self.running.until(self.done).await?;
        Ok(DRAIN_JOBS as f64 / committed.elapsed().as_secs_f64())
    }

    async fn stop(self) -> Result<()> {
        self.running.stop().await?;
        self.session.close().await
    }
}

/// Loads as usual, then while another session keeps a snapshot, so that vacuum can remove no dead row. The last of these are compared with
/// loads in another database, in turns: a snapshot keeps vacuum away in its own database only.
pub(crate) async fn pinned(url: &str) -> Result<Vec<Row>> {
    let mut loads = Loads::start(url).await?;
    let mut before = Vec::new();
    for _ in 0..10 {
        before.push(loads.next().await?);
    }
    let pin = pin_horizon(url).await?;
    let begun = Instant::now();
    let mut held = Vec::new();
    while begun.elapsed() < PINNED {
        held.push(loads.next().await?);
    }
    let mut elsewhere = Loads::start(&second_database(url).await?).await?;
    let (mut last, mut free) = (Vec::new(), Vec::new());
    for turn in 0..=LAST {
        let (pinned, other) = (loads.next().await?, elsewhere.next().await?);
        // The other worker has just started in the first turn.
        if turn > 0 {
            last.push(pinned);
            free.push(other);
        }
    }
    elsewhere.stop().await?;
    pin.client.batch_execute("commit").await?;
    pin.close().await?;
    loads.stop().await?;
    let sample = |values: Vec<f64>| Sample::of(values).context("no load was measured");
    Ok(vec![
        Row::of("drain, horizon pinned for 180 s", &sample(held)?, "jobs/s")
            .against("free", sample(before)?.median)
            .at_least(0.8),
        Row::of("five more loads after these", &sample(last)?, "jobs/s")
            .in_turns_with("in a database that is not pinned", &sample(free)?)
            .at_least(0.8),
    ])
}
