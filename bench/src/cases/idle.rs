//! What a worker costs that has nothing to do, and what it needs when it has much.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use pitwheel::Pitwheel;
use tokio::io::AsyncReadExt;

use super::drain::counters;
use crate::engine::{Running, fill, fresh, kind};
use crate::report::Row;

const WATCHED: Duration = Duration::from_secs(10);

/// Statements a second of an idle node. Each statement of the engine is a transaction of its own.
pub(crate) async fn idle(url: &str) -> Result<Vec<Row>> {
    let (pitwheel, session) = fresh(url).await?;
    let running = Running::start(&pitwheel);
    let (_, before) = counters(&session).await?;
    tokio::time::sleep(WATCHED).await;
    let (_, after) = counters(&session).await?;
    running.stop().await?;
    session.close().await?;
    let seconds = WATCHED.as_secs_f64() + 1.5;
    Ok(vec![Row::new("idle node", (after - before) / seconds, "statements/s").at_most(50.0)])
}

/// The most memory a worker process ever had, with a million jobs in the queue.
pub(crate) async fn memory(url: &str) -> Result<Vec<Row>> {
    let (_, session) = fresh(url).await?;
    fill(&session, kind(true), 1_000_000).await?;
    let mut worker = tokio::process::Command::new(std::env::current_exe()?)
        .args(["worker-process", url])
        .stdin(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let pid = worker.id().context("the worker process is gone")?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let most =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM in the status")?;
    let kib: f64 = most.trim().trim_end_matches(" kB").parse()?;
    drop(worker.stdin.take());
    worker.wait().await?;
    session.close().await?;
    Ok(vec![Row::new("memory of a worker process at 1,000,000 backlog", kib / 1024.0, "MiB").at_most(100.0)])
}

/// The other side of a case that needs processes of their own: each works until its standard input ends.
pub(crate) async fn process(part: &str, url: &str) -> Result<()> {
    match part {
        "worker-process" => {
            let pitwheel = Pitwheel::connect(url).await?;
            let running = Running::start(&pitwheel);
            tokio::io::stdin().read_to_end(&mut Vec::new()).await?;
            running.stop().await.map(drop)
        }
        "serve-process" => super::remote::serve(url).await,
        "remote-process" => super::remote::work(url).await,
        _ => anyhow::bail!("no part `{part}`"),
    }
}
