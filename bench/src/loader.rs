//! The process that loads a file for the case `ingest`.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use pitwheel::State;
use pitwheel_ingest::{Ingest, LaneFilter, Uploads, WorkerOptions};

/// Rows of the file.
pub(crate) const ROWS: u64 = 1_000_000;
/// How often the job is looked at.
const POLL: Duration = Duration::from_millis(20);

/// The folder of uploads of the case.
pub(crate) fn folder() -> PathBuf {
    std::env::temp_dir().join("pitwheel-bench-ingest")
}

/// Runs the job that waits; prints the rows that are current then, and the seconds that it took.
pub(crate) async fn run(url: &str) -> Result<()> {
    let ingest = Ingest::connect(url, Uploads::new(folder())).await?;
    let waiting = ingest.jobs(&LaneFilter::default(), None, 1).await?;
    let id = waiting.first().context("no job waits")?.sync.job_id;
    let begun = Instant::now();
    let ended = async {
        loop {
            let job = ingest.job(id).await.ok().and_then(|job| job.job);
            if job.is_some_and(|job| job.state == State::Done || job.state == State::Dead) {
                break;
            }
            tokio::time::sleep(POLL).await;
        }
    };
    let timed = async {
        ended.await;
        begun.elapsed()
    };
    let (sender, took) = tokio::sync::oneshot::channel();
    let shutdown = async {
        let _ = sender.send(timed.await);
    };
    pitwheel_ingest::run(&ingest, WorkerOptions::default(), shutdown).await?;
    let lanes = ingest.lanes(&LaneFilter::default(), 0, 10).await?;
    let rows = lanes.iter().filter_map(|lane| lane.current.as_ref()).map(|current| current.rows).max();
    ensure!(rows.is_some(), "nothing is current");
    println!("{} {}", rows.unwrap_or_default(), took.await?.as_secs_f64());
    Ok(())
}
