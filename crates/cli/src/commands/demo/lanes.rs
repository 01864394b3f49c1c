//! The part of the demo about jobs that wait for each other: two lanes, and a pipeline.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use pitwheel::{Context, Job, Lane, NewJob, NewPipeline, PipelineState, Pitwheel, Worker};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::watch;

const LANES: [&str; 2] = ["tenant-7", "tenant-9"];
const JOBS_PER_LANE: u32 = 5;
/// More than there are lanes: without lanes, jobs of one tenant would run beside each other.
const SLOTS: usize = 10;
const NAP: Duration = Duration::from_millis(20);
/// How often to look whether everything has run.
const POLL_EVERY: Duration = Duration::from_millis(50);
/// Many times as long as it takes.
const ORDER_MAX: Duration = Duration::from_secs(30);

/// The results. The names are those of the JSON output.
#[derive(Debug, Default, Serialize)]
pub(super) struct LanesReport {
    lanes: BTreeMap<String, LaneReport>,
    pipeline: String,
    /// The steps, in the order in which they ended.
    steps: Vec<String>,
}

#[derive(Debug, Default, Clone, Serialize)]
struct LaneReport {
    /// The numbers of its jobs, in the order in which they ran.
    ran: Vec<u32>,
    /// How many ran at a time, at most.
    at_a_time: usize,
    #[serde(skip)]
    running: usize,
}

impl LanesReport {
    pub(super) fn is_right(&self) -> bool {
        let in_order =
            |lane: &LaneReport| lane.ran == (1..=JOBS_PER_LANE).collect::<Vec<_>>() && lane.at_a_time == 1;
        let is_last = |name: &str, step: Option<&String>| step.is_some_and(|step| step == name);
        self.lanes.len() == LANES.len()
            && self.lanes.values().all(in_order)
            && self.pipeline == PipelineState::Done.as_str()
            && is_last("load", self.steps.first())
            && is_last("report", self.steps.last())
    }

    pub(super) fn page(&self) -> String {
        let mut text =
            "Lanes: jobs of one tenant run one at a time, in the order of their enqueue\n\n".to_owned();
        for (lane, report) in &self.lanes {
            let ran: Vec<String> = report.ran.iter().map(u32::to_string).collect();
            text.push_str(&format!(
                "  {lane:<14}{}   at most {} at a time\n",
                ran.join(" "),
                report.at_a_time
            ));
        }
        let steps = self.steps.join(", ");
        text.push_str(&format!(
            "\nA pipeline: each step runs after those that it depends on\n\n  {:<14}{steps}\n",
            self.pipeline
        ));
        text
    }
}

/// A job of a tenant.
#[derive(Debug, Serialize, Deserialize)]
struct Import {
    tenant: String,
    number: u32,
}

impl Job for Import {
    const KIND: &'static str = "demo.import";
}

/// A step of the pipeline.
#[derive(Debug, Serialize, Deserialize)]
struct Step {}

impl Job for Step {
    const KIND: &'static str = "demo.step";
}

/// What has run, as the handlers see it.
type Seen = Arc<Mutex<LanesReport>>;

fn lock(seen: &Seen) -> MutexGuard<'_, LanesReport> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn import(job: Import, seen: Seen) -> Result<(), io::Error> {
    {
        let mut report = lock(&seen);
        let lane = report.lanes.entry(job.tenant.clone()).or_default();
        lane.running += 1;
        lane.at_a_time = lane.at_a_time.max(lane.running);
    }
    tokio::time::sleep(NAP).await;
    let mut report = lock(&seen);
    let lane = report.lanes.entry(job.tenant).or_default();
    lane.running -= 1;
    lane.ran.push(job.number);
    Ok(())
}

async fn step(context: Context, seen: Seen) -> Result<(), io::Error> {
    tokio::time::sleep(NAP).await;
    let name = context.step().map_or("", |step| &step.name).to_owned();
    lock(&seen).steps.push(name);
    Ok(())
}

/// Runs the jobs and the pipeline in this process, in a queue of their own.
pub(super) async fn run(pitwheel: &Pitwheel, queue: &str) -> anyhow::Result<LanesReport> {
    let seen = Seen::default();
    let of_step = || NewJob::of(&Step {}).queue(queue);
    let pipeline = NewPipeline::new("demo")
        .step("load", of_step())
        .step("clean", of_step())
        .after(["load"])
        .step("index", of_step())
        .after(["load"])
        .step("report", of_step())
        .after(["clean", "index"]);
    let id = pitwheel.pipelines().create(pipeline).await?;
    // With the queue, so that jobs which an interrupted demo left are in other lanes.
    let lanes = LANES.map(|tenant| Ok::<_, pitwheel::Error>((tenant, Lane::of(json!([queue, tenant]))?)));
    let lanes = lanes.into_iter().collect::<Result<Vec<_>, _>>()?;
    let jobs = (1..=JOBS_PER_LANE).flat_map(|number| {
        let import = move |tenant: &str| Import { tenant: tenant.to_owned(), number };
        lanes.iter().map(move |(tenant, lane)| NewJob::of(&import(tenant)).lane(lane.clone()).queue(queue))
    });
    let ids: Vec<i64> = pitwheel.enqueue_many(jobs).await?.into_iter().map(|job| job.id).collect();
    let (stop, mut stopped) = watch::channel(false);
    let ended = async {
        let waited = tokio::time::timeout(ORDER_MAX, wait(pitwheel, id, &ids)).await;
        stop.send_replace(true);
        waited.context("the jobs in lanes and the pipeline did not end in time")?
    };
    let (imports, steps) = (seen.clone(), seen.clone());
    let work = Worker::new(pitwheel)
        .name("demo worker 3")
        .queue(queue, SLOTS)
        .handle(move |job: Import, _: Context| import(job, imports.clone()))
        .handle(move |_: Step, context: Context| step(context, steps.clone()))
        .run(async move {
            let _ = stopped.wait_for(|stopped| *stopped).await;
        });
    let (state, _) = tokio::try_join!(ended, async { work.await.map_err(anyhow::Error::from) })?;
    let mut report = std::mem::take(&mut *lock(&seen));
    state.clone_into(&mut report.pipeline);
    Ok(report)
}

/// Waits until the pipeline and all jobs have ended. Returns the state of the pipeline.
async fn wait(pitwheel: &Pitwheel, pipeline: i64, ids: &[i64]) -> anyhow::Result<&'static str> {
    loop {
        let state = pitwheel.pipelines().get(pipeline).await?.summary.state;
        let jobs = pitwheel.jobs_by_id(ids).await?;
        if state != PipelineState::Running && jobs.iter().all(|job| job.finished_at.is_some()) {
            return Ok(state.as_str());
        }
        tokio::time::sleep(POLL_EVERY).await;
    }
}
