//! The worker processes: this test binary, started again.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result};
use pitwheel::{Context, Pitwheel, Worker};
use pitwheel_testkit::{ChildProcess, Nap};
use tokio::signal::unix::{SignalKind, signal};

use crate::nodes::LEASE;

/// Slots of each worker process.
pub(crate) const SLOTS: usize = 10;
/// Set in a worker process: `remote` and the URL of a node, or `library` and that of the database.
const SOURCE: &str = "PITWHEEL_LOADED_WORKER";
/// The file to which handlers add the ids of their jobs at their end, a line each.
const ENDED: &str = "PITWHEEL_ENDED_JOBS";
/// Shorter than a job.
const GRACE: Duration = Duration::from_millis(20);

/// A worker that gets its jobs from a node.
pub(crate) fn start_remote(node: &str, ended: Option<&Path>) -> Result<ChildProcess> {
    start(format!("remote {node}"), ended)
}

/// A worker at the database.
pub(crate) fn start_library(url: &str, ended: Option<&Path>) -> Result<ChildProcess> {
    start(format!("library {url}"), ended)
}

fn start(source: String, ended: Option<&Path>) -> Result<ChildProcess> {
    let ended = ended.map_or_else(OsString::new, OsString::from);
    let environment = [(SOURCE, OsString::from(source)), (ENDED, ended)];
    ChildProcess::spawn_test("worker_process::the_worker_process", environment, Stdio::null())
}

/// Does nothing unless the environment variable is set. Ends on SIGTERM.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_worker_process() -> Result<()> {
    let Ok(source) = std::env::var(SOURCE) else { return Ok(()) };
    let worker = match source.split_once(' ').context("no address")? {
        ("remote", node) => Worker::remote(node),
        (_, url) => Worker::new(&Pitwheel::connect(url).await?).lease(LEASE),
    };
    let ended = std::env::var_os(ENDED).filter(|path| !path.is_empty()).map(PathBuf::from);
    let nap = move |nap: Nap, context: Context| {
        let ended = ended.clone();
        async move {
            context.progress(0.5, "half of it");
            tokio::time::sleep(Duration::from_millis(nap.ms)).await; // the job's work
            ended.map_or(Ok(()), |path| note_end(&path, context.id()))
        }
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

/// Nothing is awaited between this and the end of the handler. A line is written whole, beside those of other processes.
fn note_end(path: &Path, id: i64) -> io::Result<()> {
    OpenOptions::new().append(true).create(true).open(path)?.write_all(format!("{id}\n").as_bytes())
}
