//! Throughput, compared with the raw loop on the same server.

use std::time::Instant;

use anyhow::{Result, ensure};

use crate::engine::{self, DRAIN_JOBS, Running, batch, fill, fresh, kind};
use crate::raw;
use crate::report::{Row, Sample, Turns};
use crate::session::Session;

/// How long Postgres may take to add the counters of a session to its statistics.
pub(super) const STATISTICS_DELAY: std::time::Duration = std::time::Duration::from_millis(1500);

/// Jobs of the short drain: a worker must not take long to get up to speed.
const FEW: u64 = 20_000;

/// The costs of a drain: jobs per second, and WAL bytes and transactions per job.
struct Cost {
    rate: f64,
    wal_bytes: f64,
    transactions: f64,
}

pub(crate) async fn drain(url: &str) -> Result<Vec<Row>> {
    let mut costs = [Vec::new(), Vec::new()];
    let [raw, off, on, few] = Turns::<4>::measure(async |index| match index {
        0 => raw::raw_drain(url, DRAIN_JOBS).await,
        1 | 2 => {
            let cost = drain_once(url, index == 2, DRAIN_JOBS).await?;
            let rate = cost.rate;
            costs[index - 1].push(cost);
            Ok(rate)
        }
        _ => Ok(drain_once(url, true, FEW).await?.rate),
    })
    .await?;
    let median = |history: usize, field: fn(&Cost) -> f64| {
        Sample::of(costs[history].iter().map(field).collect()).map_or(0.0, |sample| sample.median)
    };
    Ok(vec![
        Row::of("raw drain", &raw, "jobs/s"),
        Row::of("drain, history off", &off, "jobs/s").in_turns_with("raw drain", &raw).at_least(0.5),
        Row::of("drain, history on", &on, "jobs/s").in_turns_with("raw drain", &raw).at_least(0.4),
        Row::of("drain, history on, 20,000 jobs", &few, "jobs/s")
            .in_turns_with("100,000 jobs", &on)
            .at_least(0.8),
        Row::new("transactions per job, history off", median(0, |cost| cost.transactions), "").at_most(0.03),
        Row::new("transactions per job, history on", median(1, |cost| cost.transactions), "").at_most(0.03),
        Row::new("WAL per job, history off", median(0, |cost| cost.wal_bytes), "bytes").at_most(700.0),
        Row::new("WAL per job, history on", median(1, |cost| cost.wal_bytes), "bytes").at_most(1300.0),
    ])
}

async fn drain_once(url: &str, history: bool, jobs: u64) -> Result<Cost> {
    let (pitwheel, session) = fresh(url).await?;
    fill(&session, kind(history), jobs).await?;
    let (wal, transactions) = counters(&session).await?;
    let rate = engine::drain(&pitwheel, jobs).await?;
    let (wal_after, transactions_after) = counters(&session).await?;
    let left: i64 = session.client.query_one("select count(*) from pitwheel.job", &[]).await?.get(0);
    ensure!(left == 0, "{left} jobs were not settled: the number is invalid");
    session.close().await?;
    Ok(Cost {
        rate,
        wal_bytes: (wal_after - wal) / jobs as f64,
        transactions: (transactions_after - transactions) / jobs as f64,
    })
}

/// Bytes of WAL and number of transactions so far.
pub(super) async fn counters(session: &Session) -> Result<(f64, f64)> {
    tokio::time::sleep(STATISTICS_DELAY).await;
    let sql = "select (pg_current_wal_insert_lsn() - '0/0')::float8,
        (select xact_commit + xact_rollback from pg_stat_database where datname = current_database())::float8";
    let row = session.client.query_one(sql, &[]).await?;
    Ok((row.get(0), row.get(1)))
}

pub(crate) async fn end_to_end(url: &str) -> Result<Vec<Row>> {
    let [raw, ours] = Turns::<2>::measure(async |index| match index {
        0 => raw::raw_end_to_end(url, DRAIN_JOBS).await,
        _ => end_to_end_once(url).await,
    })
    .await?;
    Ok(vec![
        Row::of("raw end to end", &raw, "jobs/s"),
        Row::of("end to end, history off", &ours, "jobs/s")
            .in_turns_with("raw end to end", &raw)
            .at_least(0.5),
    ])
}

async fn end_to_end_once(url: &str) -> Result<f64> {
    let (pitwheel, session) = fresh(url).await?;
    let running = Running::start(&pitwheel);
    let started = Instant::now();
    for _ in 0..DRAIN_JOBS as usize / raw::BATCH {
        pitwheel.enqueue_many(batch(kind(false), raw::BATCH)).await?;
    }
    running.until(DRAIN_JOBS).await?;
    running.stop().await?;
    let rate = DRAIN_JOBS as f64 / started.elapsed().as_secs_f64();
    session.close().await?;
    Ok(rate)
}
