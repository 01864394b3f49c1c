//! A worker in Python.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use tokio::process::Command;

use super::remote::{JOBS, RemoteRun};
use crate::child_process::ChildProcess;
use crate::report::{Row, Turns};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../sdk/python/bench/noop.py");

/// The Python that has the worker installed.
pub(crate) fn interpreter() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    // target/release/pitwheel-bench
    let target = program.ancestors().nth(2).context("this program is not in a target folder")?;
    let python = target.join("python/bin/python");
    let (missing, folder) = (python.display(), target.display());
    ensure!(python.exists(), "`{missing}` is missing: run `make bench`, or `scripts/venv {folder}` first");
    Ok(python)
}

pub(crate) async fn python(url: &str) -> Result<Vec<Row>> {
    let python = interpreter()?;
    let [one] = Turns::<1>::measure(async |_| {
        let run = RemoteRun::start(url, 1, 0, |address| worker(&python, address)).await?;
        let rate = run.rate().await?;
        run.stop().await?;
        Ok(rate)
    })
    .await?;
    Ok(vec![Row::of("one Python worker process, 20,000 end to end", &one, "jobs/s").at_least(2000.0)])
}

fn worker(python: &Path, address: &str) -> Result<ChildProcess> {
    let mut command = Command::new(python);
    let address = address.trim_start_matches("http://");
    command.args([SCRIPT, "--drain", address]).arg(JOBS.to_string());
    ChildProcess::spawn(command)
}
