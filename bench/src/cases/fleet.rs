//! Several streams and nodes: a quiet stream beside a busy one, and results that are reported to another node.

use std::time::Instant;

use anyhow::{Result, ensure};
use pitwheel::{Pitwheel, WorkerCommand};

use crate::child_process::ChildProcess;
use crate::engine::{fill, fresh, kind};
use crate::report::{Row, Sample, Turns};
use crate::stream_worker::StreamWorker;

const SLOTS: u32 = 20;
const JOBS: u64 = 10_000;

pub(crate) async fn fleet(url: &str) -> Result<Vec<Row>> {
    let [alone, beside_quiet, other_node] = Turns::<3>::measure(async |index| {
        let (pitwheel, session) = fresh(url).await?;
        // Two nodes each time, so that only the reports differ.
        let (first, streams) = ChildProcess::serve(url).await?;
        let (second, elsewhere) = ChildProcess::serve(url).await?;
        let quiet = if index == 1 { Some(quiet_worker(&pitwheel, &streams).await?) } else { None };
        fill(&session, kind(false), JOBS).await?;
        let reports = if index == 2 { &elsewhere } else { &streams };
        let worker = StreamWorker::start(&streams, reports, SLOTS).await?;
        worker.until(1).await?;
        let started = Instant::now();
        worker.until(JOBS).await?;
        let rate = JOBS as f64 / started.elapsed().as_secs_f64();
        drop((worker, quiet));
        first.stop().await?;
        second.stop().await?;
        session.close().await?;
        Ok(rate)
    })
    .await?;
    let row = |case: &str, sample: &Sample| {
        Row::of(case, sample, "jobs/s").in_turns_with("one stream", &alone).at_least(0.9)
    };
    Ok(vec![
        Row::of("one stream, 20 slots", &alone, "jobs/s"),
        row("one stream beside a quiet one", &beside_quiet),
        row("one stream, results to the other node", &other_node),
    ])
}

/// A worker that was told to be quiet.
async fn quiet_worker(pitwheel: &Pitwheel, address: &str) -> Result<StreamWorker> {
    let worker = StreamWorker::start(address, address, SLOTS).await?;
    let known = pitwheel.command_worker(worker.worker_id, WorkerCommand::Quiet).await?;
    ensure!(known, "the worker to be quiet is unknown");
    Ok(worker)
}
