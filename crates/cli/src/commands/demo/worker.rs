//! `pitwheel demo-worker`: one of the demo's worker processes, the one that is killed or the one that takes over.

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

/// Few enough that 10,000 jobs take some seconds, enough that many are in flight at any moment.
const SLOTS: usize = 40;
/// Short, so that the take-over is seen within the demo.
const LEASE: Duration = Duration::from_secs(2);
/// A nap is far shorter.
const GRACE: Duration = Duration::from_secs(1);
/// When the demo was killed, its Postgres is gone too, and signing off would wait for it.
const STOP_MAX: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
pub(crate) struct DemoWorkerArgs {
    /// The queue to work on
    #[arg(long)]
    queue: String,
    /// Its name
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

/// What the process says as it ends, a line of JSON.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Farewell {
    pub(crate) started: u64,
    pub(crate) settled: u64,
    pub(crate) lost: u64,
}

/// Works until standard input ends: that pipe closes with the demo, however the demo ends.
pub(crate) async fn run(args: DemoWorkerArgs, settings: &Settings) -> anyhow::Result<()> {
    let pitwheel = database::open(settings).await?;
    let (closing, mut closed) = watch::channel(false);
    let owner_gone = async {
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
        () = owner_gone => bail!("the database is gone, and the demo with it"),
    };
    let farewell = Farewell { started, settled, lost };
    Ok(print(&serde_json::to_string(&farewell)?)?)
}
