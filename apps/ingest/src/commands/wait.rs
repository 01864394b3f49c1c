//! Runs jobs until a job and those that follow from it have ended.

use std::time::Duration;

use anyhow::bail;
use pitwheel::State;
use pitwheel_app::Progress;
use pitwheel_app::output::{OutputFormat, print, print_json, print_message, visible};
use pitwheel_ingest::http::views::JobView;
use pitwheel_ingest::{Ingest, IngestJob, LaneFilter, WorkerOptions};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

/// How often the job is looked at.
const POLL: Duration = Duration::from_millis(100);
/// The same while the database is away.
const POLL_AWAY: Duration = Duration::from_secs(1);
/// Jobs of one chain that are looked at.
const CHAIN_MAX: i64 = 1000;

/// Prints the job; unless `no_wait`, runs jobs in this process until the job and its chain have ended. A job that is not done is an error.
pub(crate) async fn until_ended(
    ingest: &Ingest,
    id: i64,
    no_wait: bool,
    output: OutputFormat,
) -> anyhow::Result<()> {
    if no_wait {
        if output == OutputFormat::Json {
            return print_json(&JobView::from(ingest.job(id).await?));
        }
        return Ok(print(&format!("job {id} is enqueued; a server runs it"))?);
    }
    let stop = CancellationToken::new();
    let watching = async {
        let ended = watch(ingest, id).await;
        stop.cancel();
        ended
    };
    let working = async {
        let ran = pitwheel_ingest::run(ingest, WorkerOptions::default(), stop.cancelled()).await;
        ran.map_err(anyhow::Error::from)
    };
    let (jobs, ()) = tokio::try_join!(watching, working)?;
    report(ingest, jobs, output).await
}

/// Shows the progress of the job until it and its chain have ended. Returns them, oldest first.
async fn watch(ingest: &Ingest, id: i64) -> anyhow::Result<Vec<IngestJob>> {
    let bar = Progress::new(1000);
    let mut is_away = false;
    loop {
        let mut chain = match ingest.jobs(&LaneFilter::default(), None, CHAIN_MAX).await {
            Ok(chain) => chain,
            // The worker waits for the database too, and the job is not lost.
            Err(error) if error.is_transient() => {
                if !std::mem::replace(&mut is_away, true) {
                    print_message(&format!("waiting for the database: {}", visible(&error.to_string())));
                }
                tokio::time::sleep(POLL_AWAY).await;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        is_away = false;
        chain.retain(|job| job.sync.pipeline == id);
        chain.reverse();
        let is_live = |job: &IngestJob| job.job.as_ref().is_some_and(|job| job.finished_at.is_none());
        let Some(live) = chain.iter().find(|job| is_live(job)).and_then(|job| job.job.as_ref()) else {
            bar.finish();
            return Ok(chain);
        };
        let done = f64::from(live.progress.unwrap_or_default()) * 1000.0;
        bar.reached(done as u64, format!("{}: {}", live.kind, live.note.as_deref().unwrap_or("waiting")));
        tokio::time::sleep(POLL).await;
    }
}

async fn report(ingest: &Ingest, jobs: Vec<IngestJob>, output: OutputFormat) -> anyhow::Result<()> {
    let mut failed = Vec::new();
    for job in &jobs {
        let (id, kind) = (job.sync.job_id, &job.sync.kind);
        let detail = ingest.pitwheel().job(id).await?;
        let result: Value =
            detail.result.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        if detail.summary.state == State::Done {
            if output == OutputFormat::Table {
                print(&format!("job {id}  {kind}  {}  {}", job.sync.lane, summary(&result)))?;
            }
            continue;
        }
        let errors = detail.errors.as_array().and_then(|errors| errors.last()).cloned().unwrap_or_default();
        let why = errors["message"].as_str().unwrap_or("it was cancelled").to_owned();
        print_message(&format!("job {id}  {kind}  {}: {}", detail.summary.state.as_str(), visible(&why)));
        failed.push(id);
    }
    if output == OutputFormat::Json {
        print_json(&jobs.into_iter().map(JobView::from).collect::<Vec<_>>())?;
    }
    match failed.first() {
        None => Ok(()),
        Some(id) => bail!("job {id} is not done: `pitwheel-ingest rejected {id}` prints its rejected rows"),
    }
}

/// The result of a job in words.
fn summary(result: &Value) -> String {
    let count = |name: &str| result[name].as_i64();
    if let Some(recalculations) = count("recalculations") {
        return format!("{recalculations} recalculations");
    }
    let mut words = format!("{} rows", count("rows").unwrap_or_default());
    for (name, label) in [("rejected", "rejected"), ("without_factor", "without a factor")] {
        if let Some(number) = count(name).filter(|number| *number > 0) {
            words += &format!(", {number} {label}");
        }
    }
    if let Some(version) = count("version") {
        words += &format!(", current version {version}");
    }
    if let Some(format) = result["format"].as_str() {
        words += &format!(" ({format})");
    }
    words
}
