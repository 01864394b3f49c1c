//! The worker processes: this test binary, started again.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result};
use pitwheel::{Context, Pitwheel, Worker};
use pitwheel_testkit::{ChildProcess, Nap};
use tokio::signal::unix::{SignalKind, signal};

use crate::fleet::{LEASE, SLOTS};

/// Set in a worker process: `remote` and the URL of a node, or `library` and that of the database.
const SOURCE: &str = "PITWHEEL_LOADED_WORKER";
/// Shorter than a job.
const GRACE: Duration = Duration::from_millis(20);

/// A worker that gets its jobs from a node.
pub(crate) fn start_remote(node: &str) -> Result<ChildProcess> {
    start(format!("remote {node}"))
}

/// A worker at the database.
pub(crate) fn start_library(url: &str) -> Result<ChildProcess> {
    start(format!("library {url}"))
}

fn start(source: String) -> Result<ChildProcess> {
    ChildProcess::spawn_test("worker_process::the_worker_process", [(SOURCE, source)], Stdio::null())
}

/// Does nothing unless the environment variable is set. Ends on SIGTERM.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_worker_process() -> Result<()> {
    let Ok(source) = std::env::var(SOURCE) else { return Ok(()) };
    let worker = match source.split_once(' ').context("no address")? {
        ("remote", node) => Worker::remote(node),
        (_, url) => Worker::new(&Pitwheel::connect(url).await?).lease(LEASE),
    };
    let nap = async |nap: Nap, context: Context| {
        context.progress(0.5, "half of it");
        tokio::time::sleep(Duration::from_millis(nap.ms)).await; // the job's work
        Ok::<_, String>(())
    };
    let mut terminate = signal(SignalKind::terminate())?;
    worker
        .queue("default", SLOTS)
        .grace(GRACE)
        .handle(nap)
        .run(async { terminate.recv().await.unwrap_or(()) })
        .await?;
    Ok(())
}
