//! Workers over gRPC: a server process, and worker processes without access to the database.

use std::time::Instant;

use anyhow::Result;
use pitwheel::Pitwheel;

use super::drain::counters;
use crate::child_process::ChildProcess;
use crate::engine::{self, DRAIN_JOBS, batch, fresh, insert, insert_due_in, kind};
use crate::raw;
use crate::report::{Row, Sample, Turns};
use crate::session::Session;

pub(super) const JOBS: u64 = 20_000;
/// Reads the newest job first: while jobs are left, those before it that are done are not read.
const NOTHING_DUE: &str = "select not exists (
    select from pitwheel.job where queue = 'default' and priority = 0 and run_at <= now() order by run_at desc limit 1
)";

/// A server process, and worker processes with open streams.
pub(super) struct RemoteRun {
    pitwheel: Pitwheel,
    session: Session,
    server: ChildProcess,
    workers: Vec<ChildProcess>,
}

impl RemoteRun {
    /// Starts workers that `start` creates for the server's URL, with `behind` jobs in the queue that are not due.
    pub(super) async fn start(
        url: &str,
        workers: usize,
        behind: u64,
        start: impl Fn(&str) -> Result<ChildProcess>,
    ) -> Result<RemoteRun> {
        let (pitwheel, session) = fresh(url).await?;
        if behind > 0 {
            insert_due_in(&session, kind(false), behind, "1 day").await?;
            session.client.batch_execute("vacuum analyze pitwheel.job").await?;
            session.client.batch_execute("checkpoint").await?;
        }
        let (server, address) = ChildProcess::serve(url).await?;
        let children = (0..workers).map(|_| start(&address)).collect::<Result<Vec<ChildProcess>>>()?;
        until_open(&session, workers).await?;
        Ok(RemoteRun { pitwheel, session, server, workers: children })
    }

    /// Jobs per second, from the first enqueue until none is left.
    pub(super) async fn rate(&self) -> Result<f64> {
        let started = Instant::now();
        for _ in 0..JOBS as usize / raw::BATCH {
            self.pitwheel.enqueue_many(batch(kind(false), raw::BATCH)).await?;
        }
        self.session.until(NOTHING_DUE).await?;
        Ok(JOBS as f64 / started.elapsed().as_secs_f64())
    }

    pub(super) async fn stop(self) -> Result<()> {
        for worker in self.workers {
            worker.stop().await?;
        }
        self.server.stop().await?;
        self.session.close().await
    }
}

async fn remote_rate(url: &str, workers: usize, behind: u64) -> Result<f64> {
    let run = RemoteRun::start(url, workers, behind, start_worker).await?;
    let rate = run.rate().await?;
    run.stop().await?;
    Ok(rate)
}

fn start_worker(address: &str) -> Result<ChildProcess> {
    ChildProcess::start("remote-process", address)
}

async fn local_rate(url: &str) -> Result<f64> {
    let (pitwheel, session) = fresh(url).await?;
    insert(&session, kind(false), DRAIN_JOBS).await?;
    let rate = engine::drain(&pitwheel, DRAIN_JOBS).await?;
    session.close().await?;
    Ok(rate)
}

/// Jobs per second of eight workers, and transactions per job.
async fn eight_workers(url: &str) -> Result<(f64, f64)> {
    let run = RemoteRun::start(url, 8, 0, start_worker).await?;
    let (_, before) = counters(&run.session).await?;
    let rate = run.rate().await?;
    let (_, after) = counters(&run.session).await?;
    run.stop().await?;
    Ok((rate, (after - before) / JOBS as f64))
}

/// Waits until this many streams are open.
pub(super) async fn until_open(session: &Session, streams: usize) -> Result<()> {
    session.until(&format!("select count(*) >= {streams} from pitwheel.worker where dead_at is null")).await
}

pub(crate) async fn remote(url: &str) -> Result<Vec<Row>> {
    let mut transactions = Vec::new();
    let [local, eight, twenty, with_backlog] = Turns::<4>::measure(async |index| match index {
        0 => local_rate(url).await,
        1 => {
            let (rate, per_job) = eight_workers(url).await?;
            transactions.push(per_job);
            Ok(rate)
        }
        2 => remote_rate(url, 20, 0).await,
        _ => remote_rate(url, 8, 1_000_000).await,
    })
    .await?;
    let transactions = Sample::of(transactions).map_or(0.0, |sample| sample.median);
    let (share, floor) = (0.4, 10_000.0);
    let bar = (floor / local.median).max(share);
    let beside = |name: &str, sample: &Sample| {
        Row::of(name, sample, "jobs/s").in_turns_with("8 remote workers", &eight).at_least(0.9)
    };
    Ok(vec![
        Row::of("8 remote workers, 20,000 end to end", &eight, "jobs/s")
            .in_turns_with("in-process drain", &local)
            .at_least(bar),
        Row::new("transactions per job, remote", transactions, "").at_most(0.05),
        beside("20 remote workers", &twenty),
        beside("8 remote workers, 1,000,000 behind", &with_backlog),
    ])
}
