//! `pitwheel demo-worker`: one of the two worker processes of the demo.

use std::io;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use pitwheel::{Context, Job, Stats, Worker};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::database;
use crate::output::print;
use crate::settings::Settings;

/// Few enough that 10,000 jobs take some seconds, many enough that the killed worker holds some.
const SLOTS: usize = 40;
/// Short, so that the other worker takes the jobs over during the demo.
const LEASE: Duration = Duration::from_secs(2);
/// Longer than any job of the demo takes.
const GRACE: Duration = Duration::from_secs(1);
/// When the demo is killed, its Postgres ends too, and a normal stop would wait for it.
const STOP_MAX: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
pub(crate) struct DemoWorkerArgs {
    /// The queue to work on
    #[arg(long)]
    queue: String,
    /// The name of the worker
    #[arg(long)]
    name: String,
}

/// A job that takes 5 to 20 ms.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Nap {
    pub(crate) number: u64,
}

impl Job for Nap {
    const KIND: &'static str = "demo.nap";
}

async fn nap(job: Nap, _: Context) -> Result<(), io::Error> {
    tokio::time::sleep(Duration::from_millis(5 + job.number % 16)).await;
    Ok(())
}

/// Counts that the process prints as JSON before it ends.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct FinalCounts {
    pub(crate) started: u64,
    pub(crate) settled: u64,
    pub(crate) lost: u64,
}

/// Runs until standard input closes: the pipe closes when the demo ends, even if it is killed.
pub(crate) async fn run(args: DemoWorkerArgs, settings: &Settings) -> anyhow::Result<()> {
    let pitwheel = database::open(settings).await?;
    let (closing, mut closed) = watch::channel(false);
    let owner_ended = async {
        let _ = tokio::task::spawn_blocking(|| io::copy(&mut io::stdin().lock(), &mut io::sink())).await;
        closing.send_replace(true);
        tokio::time::sleep(STOP_MAX).await;
    };
    let working = Worker::new(&pitwheel)
        .name(args.name)
        .queue(args.queue, SLOTS)
        .handle(nap)
        .lease(LEASE)
        .grace(GRACE)
        .run(async move {
            let _ = closed.wait_for(|closed| *closed).await;
        });
    let Stats { started, settled, lost } = tokio::select! {
        stats = working => stats?,
        () = owner_ended => bail!("the demo has ended, and its database with it"),
    };
    let final_counts = FinalCounts { started, settled, lost };
    Ok(print(&serde_json::to_string(&final_counts)?)?)
}
