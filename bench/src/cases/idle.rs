//! Statements of an idle worker, and memory of a busy one.

use std::time::Duration;

use anyhow::Result;

use super::drain::{STATISTICS_DELAY, counters};
use crate::child_process::ChildProcess;
use crate::engine::{Running, fill, fresh, kind};
use crate::process_stats::peak_memory;
use crate::report::Row;
use crate::session::Session;

/// How long to count. A session updates the counters once a second, so the error is up to a second's work, a few percent.
const COUNTED: Duration = Duration::from_secs(30);
/// A session that becomes idle may update the counters this late. Without the wait, earlier work would be counted.
const IDLE_DELAY: Duration = Duration::from_secs(11);

/// Statements per second of an idle worker.
pub(crate) async fn idle(url: &str) -> Result<Vec<Row>> {
    let (pitwheel, session) = fresh(url).await?;
    let running = Running::start(&pitwheel);
    let rate = statements(&session).await?;
    running.stop().await?;
    session.close().await?;
    Ok(vec![Row::new("idle node", rate, "statements/s").at_most(50.0)])
}

/// Statements per second, counted over half a minute. Each statement of the engine is a transaction of its own.
pub(super) async fn statements(session: &Session) -> Result<f64> {
    tokio::time::sleep(IDLE_DELAY).await;
    let (_, before) = counters(session).await?;
    tokio::time::sleep(COUNTED).await;
    let (_, after) = counters(session).await?;
    Ok((after - before) / (COUNTED + STATISTICS_DELAY).as_secs_f64())
}

/// The peak memory of a worker process with a million jobs in the queue.
pub(crate) async fn memory(url: &str) -> Result<Vec<Row>> {
    let (_, session) = fresh(url).await?;
    fill(&session, kind(true), 1_000_000).await?;
    let worker = ChildProcess::start("worker-process", url)?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let memory = peak_memory(worker.pid()?)?;
    worker.stop().await?;
    session.close().await?;
    Ok(vec![Row::new("memory of a worker process at 1,000,000 backlog", memory, "MiB").at_most(100.0)])
}
