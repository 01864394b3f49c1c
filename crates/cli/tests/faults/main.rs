//! Faults under load, with real processes: nothing is lost, nothing is settled twice, no live worker is declared dead, and the
//! other jobs go on at their pace. Run with `--nocapture` to see the throughput before and during each fault.

mod fleet;
mod lanes;
#[path = "../cli/support.rs"]
#[allow(dead_code, reason = "this binary uses a part of it")]
mod support;
mod wire_worker;
mod worker_process;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use pitwheel::WorkerCommand;
use tokio_postgres::Client;

use crate::fleet::{Fleet, LEASE};

/// How long the throughput is measured before a fault, and during it.
const BEFORE: Duration = Duration::from_secs(3);
const DURING: Duration = Duration::from_secs(4);
/// The share of the throughput that must be left. Two thirds or more of the slots are left during each fault; a busy machine
/// makes the rest of the difference.
const LEFT_MIN: f64 = 0.5;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_under_load_stop_no_other_worker() -> Result<()> {
    let mut fleet = Fleet::start().await?;
    locked_rows(&fleet).await?;
    pinned_horizon(&fleet).await?;
    quiet_stream(&fleet).await?;
    reports_to_the_other_node(&fleet).await?;
    worker_with_a_short_grace(&mut fleet).await?;
    node_that_restarts(&mut fleet).await?;
    fleet.finish().await
}

/// Longer than the lease: whoever waits for the rows cannot renew in time.
async fn locked_rows(fleet: &Fleet) -> Result<()> {
    let before = fleet.throughput(BEFORE).await?;
    let mut client = fleet.connect().await?;
    let lock = client.transaction().await?;
    let one_each = "select id from pitwheel.job
        where id in (select min(id) from pitwheel.job where holder is not null group by holder)
        for update skip locked";
    let locked = lock.query(one_each, &[]).await?.len();
    ensure!(locked > 0, "no running job was locked");
    let during = fleet.throughput(LEASE + Duration::from_secs(2)).await?;
    lock.rollback().await?;
    fleet.judge(&format!("{locked} locked rows"), before, during).await
}

async fn pinned_horizon(fleet: &Fleet) -> Result<()> {
    let before = fleet.throughput(BEFORE).await?;
    let client = fleet.connect().await?;
    pin(&client).await?;
    let during = fleet.throughput(DURING).await?;
    drop(client);
    fleet.judge("a pinned snapshot", before, during).await
}

async fn pin(client: &Client) -> Result<()> {
    let snapshot = "begin isolation level repeatable read; select count(*) from pitwheel.worker";
    Ok(client.batch_execute(snapshot).await?)
}

/// The smaller one of two streams at one node.
async fn quiet_stream(fleet: &Fleet) -> Result<()> {
    let before = fleet.throughput(BEFORE).await?;
    let id = fleet.small_stream.worker_id;
    ensure!(fleet.pitwheel().command_worker(id, WorkerCommand::Quiet).await?, "the worker is unknown");
    let during = fleet.throughput(DURING).await?;
    ensure!(fleet.pitwheel().command_worker(id, WorkerCommand::Resume).await?, "the worker is unknown");
    fleet.judge("a quiet stream", before, during).await
}

async fn reports_to_the_other_node(fleet: &Fleet) -> Result<()> {
    let before = fleet.throughput(BEFORE).await?;
    fleet.large_stream.report_to_the_other_node(true);
    let during = fleet.throughput(DURING).await?;
    fleet.large_stream.report_to_the_other_node(false);
    fleet.judge("reports to the other node", before, during).await
}

/// Its grace is shorter than its jobs: some have ended and some are released.
async fn worker_with_a_short_grace(fleet: &mut Fleet) -> Result<()> {
    let before = fleet.throughput(BEFORE).await?;
    fleet.remote_worker.signal("TERM")?;
    let during = fleet.throughput(DURING).await?;
    ensure!(fleet.remote_worker.has_ended()?, "the worker has not ended after {DURING:?}");
    fleet.start_remote_worker()?;
    fleet.judge("a worker ends with a short grace", before, during).await
}

/// The node of one of the remote workers. The throughput is counted from its start on: its worker must be served again.
async fn node_that_restarts(fleet: &mut Fleet) -> Result<()> {
    let before = fleet.throughput(BEFORE).await?;
    let started = Instant::now();
    fleet.restart_second_node().context("the node did not restart")?;
    let during = fleet.throughput(DURING.saturating_sub(started.elapsed())).await?;
    fleet.judge("a node restarts", before, during).await
}
