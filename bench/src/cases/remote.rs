//! Workers over gRPC: a server process, and worker processes without access to the database.

use std::time::Instant;

use anyhow::Result;

use super::drain::counters;
use crate::child_process::ChildProcess;
use crate::engine::{self, DRAIN_JOBS, batch, fill, fresh, insert, kind};
use crate::raw;
use crate::report::{Row, Sample, Turns};
use crate::session::Session;

pub(super) const JOBS: u64 = 20_000;
const NOTHING_DUE: &str = "select not exists
    (select from pitwheel.job where queue = 'default' and priority = 0 and run_at <= now())";

async fn once(url: &str, workers: usize, behind: u64) -> Result<(f64, f64)> {
    end_to_end(url, workers, behind, |address| ChildProcess::start("remote-process", address)).await
}

/// One run with worker processes that `start` creates for the server's URL. Returns jobs per second and transactions per job.
pub(super) async fn end_to_end(
    url: &str,
    workers: usize,
    behind: u64,
    start: impl Fn(&str) -> Result<ChildProcess>,
) -> Result<(f64, f64)> {
    let (pitwheel, session) = fresh(url).await?;
    if behind > 0 {
        fill(&session, kind(false), behind).await?;
        let later = "update pitwheel.job set run_at = run_at + interval '1 day'; vacuum analyze pitwheel.job; checkpoint";
        for statement in later.split(';') {
            session.client.batch_execute(statement).await?;
        }
    }
    let (server, address) = ChildProcess::serve(url).await?;
    let children = (0..workers).map(|_| start(&address)).collect::<Result<Vec<ChildProcess>>>()?;
    until_open(&session, workers).await?;
    let (_, before) = counters(&session).await?;
    let started = Instant::now();
    for _ in 0..JOBS as usize / raw::BATCH {
        pitwheel.enqueue_many(batch(kind(false), raw::BATCH)).await?;
    }
    session.until(NOTHING_DUE).await?;
    let rate = JOBS as f64 / started.elapsed().as_secs_f64();
    let (_, after) = counters(&session).await?;
    for child in children {
        child.stop().await?;
    }
    server.stop().await?;
    session.close().await?;
    Ok((rate, (after - before) / JOBS as f64))
}

/// Waits until this many streams are open.
pub(super) async fn until_open(session: &Session, streams: usize) -> Result<()> {
    session.until(&format!("select count(*) >= {streams} from pitwheel.worker where dead_at is null")).await
}

pub(crate) async fn remote(url: &str) -> Result<Vec<Row>> {
    let mut transactions = Vec::new();
    let [local, eight, twenty, with_backlog] = Turns::<4>::measure(async |index| {
        let (rate, per_job) = match index {
            0 => {
                let (pitwheel, session) = fresh(url).await?;
                insert(&session, kind(false), DRAIN_JOBS).await?;
                let rate = engine::drain(&pitwheel, DRAIN_JOBS).await?;
                session.close().await?;
                return Ok(rate);
            }
            1 => once(url, 8, 0).await?,
            2 => once(url, 20, 0).await?,
            _ => once(url, 8, 1_000_000).await?,
        };
        if index == 1 {
            transactions.push(per_job);
        }
        Ok(rate)
    })
    .await?;
    let transactions = Sample::of(transactions).map_or(0.0, |sample| sample.median);
    let (share, floor) = (0.4, 10_000.0);
    let bar = (floor / local.median).max(share);
    let beside = |name: &str, sample: &Sample| {
        Row::new(name, sample.median, "jobs/s")
            .spread(sample)
            .against("8 remote workers", eight.median)
            .at_least(0.9)
    };
    Ok(vec![
        Row::new("8 remote workers, 20,000 end to end", eight.median, "jobs/s")
            .spread(&eight)
            .against("in-process drain", local.median)
            .at_least(bar),
        Row::new("transactions per job, remote", transactions, "").at_most(0.05),
        beside("20 remote workers", &twenty),
        beside("8 remote workers, 1,000,000 behind", &with_backlog),
    ])
}
