//! Faults under load, with real processes: nothing is lost, nothing is settled twice, no live worker is declared dead, and the
//! other jobs go on at their pace. Run with `--nocapture` to see the throughput before and during each fault.

mod fleet;
mod nodes;
#[path = "../cli/support.rs"]
#[allow(dead_code, reason = "this binary uses a part of it")]
mod support;
mod wire_worker;
mod worker_process;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use pitwheel::WorkerCommand;
use tokio_postgres::Client;

use crate::fleet::Fleet;
use crate::nodes::LEASE;

/// How long the throughput is measured before a fault, and during it.
const BEFORE: Duration = Duration::from_secs(3);
const DURING: Duration = Duration::from_secs(4);
/// The share of the throughput that must be left. Two thirds or more of the slots are left during each fault; a busy machine
/// makes the rest of the difference.
const LEFT_MIN: f64 = 0.5;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_under_load_stop_no_other_worker() -> Result<()> {
    let mut fleet = Fleet::start().await?;
    locked_rows(&mut fleet).await?;
    pinned_horizon(&mut fleet).await?;
    quiet_stream(&mut fleet).await?;
    reports_to_the_other_node(&mut fleet).await?;
    workers_with_a_short_grace(&mut fleet).await?;
    node_that_restarts(&mut fleet).await?;
    fleet.finish().await
}

/// Longer than the lease: whoever waits for the rows cannot renew in time.
async fn locked_rows(fleet: &mut Fleet) -> Result<()> {
    let before = fleet.throughput(BEFORE).await?;
    let mut client = fleet.connect().await?;
    let lock = client.transaction().await?;
    let one_each = "select running.id
        from (select distinct holder from pitwheel.job where holder is not null) as worker
        cross join lateral (
            select id from pitwheel.job where holder = worker.holder limit 1 for update skip locked) as running";
    let locked = lock.query(one_each, &[]).await?.len();
    ensure!(locked == 5, "a running job of each worker is locked: {locked}");
    let during = fleet.throughput(LEASE + Duration::from_secs(2)).await?;
    lock.rollback().await?;
    fleet.judge(&format!("{locked} locked rows"), before, during).await
}

async fn pinned_horizon(fleet: &mut Fleet) -> Result<()> {
    let before = fleet.throughput(BEFORE).await?;
    let client = fleet.connect().await?;
    pin(&client).await?;
    fleet.connect().await?.batch_execute(DEAD_ROWS).await?;
    let during = fleet.throughput(DURING).await?;
    drop(client);
    fleet.judge("a pinned snapshot", before, during).await
}

/// Jobs that are inserted and deleted in one transaction: their rows and index entries stay behind the snapshot.
const DEAD_ROWS: &str = "begin;
    insert into pitwheel.job (kind, payload, queue, run_at, enqueued_at, priority, max_attempts)
    select 'nap', '{}', case when n % 2 = 0 then 'default' else 'wire' end, now(), now(), 0, 1 from generate_series(1, 100000) as n;
    delete from pitwheel.job where payload::text = '{}';
    commit";

async fn pin(client: &Client) -> Result<()> {
    let snapshot = "begin isolation level repeatable read; select count(*) from pitwheel.worker";
    Ok(client.batch_execute(snapshot).await?)
}

/// The smaller one of two streams at one node.
async fn quiet_stream(fleet: &mut Fleet) -> Result<()> {
    let before = fleet.throughput(BEFORE).await?;
    let id = fleet.small_stream.worker_id;
    ensure!(fleet.pitwheel().command_worker(id, WorkerCommand::Quiet).await?, "the worker is unknown");
    let during = fleet.throughput(DURING).await?;
    ensure!(fleet.pitwheel().command_worker(id, WorkerCommand::Resume).await?, "the worker is unknown");
    fleet.judge("a quiet stream", before, during).await
}

async fn reports_to_the_other_node(fleet: &mut Fleet) -> Result<()> {
    let before = fleet.throughput(BEFORE).await?;
    fleet.large_stream.report_to_the_other_node(true);
    let during = fleet.throughput(DURING).await?;
    fleet.large_stream.report_to_the_other_node(false);
    fleet.judge("reports to the other node", before, during).await
}

/// The grace is shorter than the jobs: some have ended and some are released. Again and again, because few end at that moment.
async fn workers_with_a_short_grace(fleet: &mut Fleet) -> Result<()> {
    let before = fleet.throughput(BEFORE).await?;
    for round in 1..=3 {
        fleet.remote_worker.signal("TERM")?;
        let during = fleet.throughput(DURING).await?;
        fleet.start_remote_worker()?;
        fleet
            .judge(&format!("a remote worker ends with a short grace, time {round}"), before, during)
            .await?;
        fleet.library_worker.signal("TERM")?;
        let during = fleet.throughput(DURING).await?;
        fleet.start_library_worker()?;
        fleet
            .judge(&format!("a library worker ends with a short grace, time {round}"), before, during)
            .await?;
    }
    Ok(())
}

/// The node of one of the remote workers. The throughput is counted from its start on: its worker must be served again.
async fn node_that_restarts(fleet: &mut Fleet) -> Result<()> {
    let before = fleet.throughput(BEFORE).await?;
    let started = Instant::now();
    fleet.restart_second_node().context("the node did not restart")?;
    let during = fleet.throughput(DURING.saturating_sub(started.elapsed())).await?;
    fleet.judge("a node restarts", before, during).await
}
