//! `pitwheel-ingest demo`: small files, good and bad ones, and what is current after each of them.

use std::convert::Infallible;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use futures_util::stream;
use pitwheel::State;
use pitwheel_app::output::print;
use pitwheel_ingest::{CsvOptions, Ingest, Lane, LaneFilter, Method, Target, WorkerOptions};
use tokio_util::sync::CancellationToken;

use crate::database::Database;

/// A file that is not loaded within this time is a failure of the demo.
const LOAD_MAX: Duration = Duration::from_secs(30);
/// How often a job is looked at.
const POLL: Duration = Duration::from_millis(20);

const FACTORS: &str = "category,measure,kg_co2e\nflight,km,0.25\ntrain,km,0.01\n";
const FIRST: &str = "unit,category,quantity,measure\nit,flight,1000,km\nit,train,500,km\n";
const SECOND: &str = "unit;category;quantity;measure\nit;flight;2000;km\nhr;train;300;km\nhr;flight;10;km\n";
const BAD: &str = "unit,category,quantity,measure\nit,flight,many,km\nit,train,500,km\n";
const MISSPELT: &str = "unit,categry,quantity,measure\nit,flight,1,km\n";

pub(crate) async fn run() -> anyhow::Result<()> {
    let uploads = Folder::new();
    let database = Database::temporary(&uploads.0).await?;
    let stop = CancellationToken::new();
    let shown = async {
        let shown = show(&database.ingest).await;
        stop.cancel();
        shown
    };
    let worker = async {
        let ran = pitwheel_ingest::run(&database.ingest, WorkerOptions::default(), stop.cancelled()).await;
        ran.map_err(anyhow::Error::from)
    };
    let done = tokio::try_join!(shown, worker).map(drop);
    let closed = database.close().await;
    done.and(closed)
}

/// A folder for uploads that is deleted with the demo.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        Folder(std::env::temp_dir().join(format!("pitwheel-ingest-demo-{}", std::process::id())))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn lane(target: Target) -> Lane {
    let entry_type = (target == Target::Entries).then(|| "flights".to_owned());
    Lane { module: Some("travel".into()), entry_type, target, method: Method::Csv, year: Some(2025) }
}

async fn show(ingest: &Ingest) -> anyhow::Result<()> {
    let entries = lane(Target::Entries);
    print("Factors and entries are loaded. Each file is a job in the lane of its data; emissions follow.")?;
    load(ingest, &lane(Target::Factors), "factors.csv", FACTORS).await?;
    load(ingest, &entries, "flights.csv", FIRST).await?;
    let first = current(ingest, &entries).await?;
    print("A second file, with another delimiter, replaces the first when all of it is loaded.")?;
    load(ingest, &entries, "flights-2.csv", SECOND).await?;
    let second = current(ingest, &entries).await?;
    ensure!(second != first, "the second file is not current");
    print("A file with a wrong row, and one with a misspelt header, change nothing.")?;
    load(ingest, &entries, "bad.csv", BAD).await?;
    load(ingest, &entries, "misspelt.csv", MISSPELT).await?;
    ensure!(current(ingest, &entries).await? == second, "a bad file has changed the current version");
    ingest.promote(first).await?;
    ensure!(current(ingest, &entries).await? == first, "the first version is not current");
    Ok(print(&format!("Version {first} is promoted: it is current again, without a load."))?)
}

/// Loads a file and prints what became of it, and of the jobs that follow.
async fn load(ingest: &Ingest, lane: &Lane, name: &str, text: &'static str) -> anyhow::Result<()> {
    let upload = ingest.uploads().receive(stream::iter([Ok::<_, Infallible>(Bytes::from(text))])).await?;
    let id = match ingest.load(lane, upload, Some(name), &CsvOptions::default(), "demo").await {
        Ok(id) => id,
        Err(error) => return Ok(print(&format!("  {name:<14} refused: {error}"))?),
    };
    let ended = tokio::time::timeout(LOAD_MAX, ended(ingest, id)).await;
    ended.with_context(|| format!("`{name}` was not loaded in time"))??;
    let job = ingest.pitwheel().job(id).await?;
    if job.summary.state != State::Done {
        let why =
            job.errors.as_array().and_then(|errors| errors.last()).map(|error| error["message"].clone());
        let why = why.as_ref().and_then(|why| why.as_str()).unwrap_or_default().to_owned();
        return Ok(print(&format!("  {name:<14} {}: {why}", job.summary.state.as_str()))?);
    }
    for state in ingest.lanes(&LaneFilter::default(), 0, 10).await? {
        if let Some(version) = state.current {
            print(&format!(
                "  {:<14} {} has version {}, {} rows",
                name, state.lane, version.id, version.rows
            ))?;
        }
    }
    Ok(())
}

/// Waits until the job and all that follow from it have ended.
async fn ended(ingest: &Ingest, id: i64) -> anyhow::Result<()> {
    loop {
        let mut chain = ingest.jobs(&LaneFilter::default(), None, 100).await?;
        chain.retain(|job| job.sync.pipeline == id);
        if chain.iter().all(|job| job.job.as_ref().is_none_or(|job| job.finished_at.is_some())) {
            return Ok(());
        }
        tokio::time::sleep(POLL).await;
    }
}

/// The current version of a lane.
async fn current(ingest: &Ingest, lane: &Lane) -> anyhow::Result<i64> {
    let lanes = ingest.lanes(&LaneFilter::default(), 0, 10).await?;
    let state = lanes.into_iter().find(|state| state.lane == *lane).context("the lane is not known")?;
    Ok(state.current.context("nothing is current")?.id)
}
