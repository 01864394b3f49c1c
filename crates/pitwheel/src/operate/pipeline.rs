//! The statements for pipelines: create, cancel, retry, and lists.

use std::collections::BTreeMap;
use std::time::SystemTime;

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::engine::enqueue::unsigned;
use crate::error::Error;
use crate::job::limits::ENQUEUE_MAX;
use crate::job::new_job::check_name;
use crate::job::new_pipeline::NewPipeline;
use crate::job::on_failure::OnFailure;
use crate::job::step::StepState;
use crate::operate::page::page;
use crate::operate::pipeline_definition::definition;
use crate::postgres::{Params, Sql, query};

pub(crate) const CREATE: &str = include_str!("../../sql/operate/create_pipelines.sql");
/// Pipelines per statement, if they have few steps.
const CREATE_MAX: usize = ENQUEUE_MAX;
/// Bytes of the definitions of one statement; a larger one goes alone.
const CREATE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// A page with a filter scans at most this many rows, then returns a cursor.
const WINDOW: i64 = 10_000;
/// Why a pipeline was not found.
const MISSING: &str = "no pipeline has this id, or it was pruned";

/// The state of a pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PipelineState {
    /// Some of its steps wait or are live.
    Running,
    /// All steps are done.
    Done,
    /// Every step has ended, and some are dead, cancelled or skipped.
    Failed,
    /// It was cancelled, and every step has ended.
    Cancelled,
}

impl PipelineState {
    /// All states.
    pub const ALL: [PipelineState; 4] =
        [PipelineState::Running, PipelineState::Done, PipelineState::Failed, PipelineState::Cancelled];

    /// The name used in the CLI and the API.
    pub fn as_str(self) -> &'static str {
        match self {
            PipelineState::Running => "running",
            PipelineState::Done => "done",
            PipelineState::Failed => "failed",
            PipelineState::Cancelled => "cancelled",
        }
    }
}

impl std::str::FromStr for PipelineState {
    type Err = Error;

    fn from_str(word: &str) -> Result<PipelineState, Error> {
        let found = PipelineState::ALL.into_iter().find(|state| state.as_str() == word);
        found.ok_or_else(|| {
            Error::Invalid(format!("state `{word}` is not one of running, done, failed, cancelled"))
        })
    }
}

/// A pipeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pipeline {
    /// Its id.
    pub id: i64,
    /// Its name, which need not be unique.
    pub name: String,
    /// Its state.
    pub state: PipelineState,
    /// What becomes of the steps after one that failed.
    pub on_failure: OnFailure,
    /// How many steps it has.
    pub steps: u32,
    /// How many of them have ended, in any way.
    pub ended: u32,
    /// How many of them are dead or cancelled.
    pub failed: u32,
    /// When it was created.
    pub created_at: SystemTime,
    /// When it was cancelled.
    pub cancelled_at: Option<SystemTime>,
    /// When its last step ended.
    pub finished_at: Option<SystemTime>,
}

/// A pipeline with its steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PipelineDetail {
    /// The columns of a list.
    pub summary: Pipeline,
    /// Its steps in their order: a step stands after those that it comes after.
    pub steps: Vec<Step>,
}

/// A step of a pipeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Its name, unique in the pipeline.
    pub name: String,
    /// Its state.
    pub state: StepState,
    /// The steps that it comes after.
    pub after: Vec<String>,
    /// The kind of its job.
    pub kind: String,
    /// The queue of its job.
    pub queue: String,
    /// The id of its last job. `None`: it had none yet.
    pub job_id: Option<i64>,
    /// When it ended, or was skipped.
    pub ended_at: Option<SystemTime>,
    /// The result of its job, as JSON text. `None`: it has none, or it was left out.
    pub result: Option<String>,
    /// The result was left out, because the results up to this step have more than 1 MiB: read it from its job.
    pub result_left_out: bool,
    /// Whether its kind is redacted (`docs/glossary.md`). Servers hide its values from some callers; the library hides nothing.
    pub redacted: bool,
}

impl PipelineDetail {
    /// How many steps are in each state; states without steps are left out.
    pub fn counts(&self) -> BTreeMap<&'static str, usize> {
        let mut counts = BTreeMap::new();
        for step in &self.steps {
            *counts.entry(step.state.as_str()).or_default() += 1;
        }
        counts
    }
}

/// Which pipelines to list. The default is the newest 50.
#[derive(Debug, Clone, Default)]
pub struct PipelineFilter {
    /// Only this name.
    pub name: Option<String>,
    /// Only this state.
    pub state: Option<PipelineState>,
    /// Only ids below this one: the cursor of the page before.
    pub before: Option<i64>,
    /// Pipelines per page, at most 1,000; 0 means 50.
    pub limit: usize,
}

/// One page of a list of pipelines.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PipelinePage {
    /// The pipelines, newest first; fewer than the limit, even none, when few of the scanned rows match.
    pub pipelines: Vec<Pipeline>,
    /// The cursor of the next page, for [`PipelineFilter::before`]; `None`: this is the last page.
    pub next: Option<i64>,
}

/// A pipeline that was created.
pub(crate) struct Created {
    pub(crate) id: i64,
    pub(crate) started: Started,
}

/// The jobs that steps have become.
pub(crate) struct Started {
    /// The queues in which one of them is due.
    pub(crate) due: Vec<String>,
    /// The lanes that they entered, to be promoted when this is committed.
    pub(crate) lanes: Vec<String>,
}

impl Started {
    /// From the columns 1 and 2 of a row.
    fn of(row: &Row) -> Started {
        let names = |column: usize| row.get::<_, Option<Vec<String>>>(column).unwrap_or_default();
        Started { due: names(1), lanes: names(2) }
    }
}

/// Creates pipelines, all of which are checked first. The results are in the order given.
pub(crate) async fn create(client: &impl Sql, new: &[NewPipeline]) -> Result<Vec<Created>, Error> {
    let definitions = new.iter().map(definition).collect::<Result<Vec<String>, Error>>()?;
    let mut created = Vec::with_capacity(definitions.len());
    let mut left = &definitions[..];
    while !left.is_empty() {
        let mut bytes = 0;
        let fits = left.iter().take(CREATE_MAX).take_while(|definition| {
            bytes += definition.len();
            bytes <= CREATE_BYTES_MAX
        });
        let (batch, rest) = left.split_at(fits.count().max(1));
        let rows = client.rows(CREATE, &[(&batch, Type::TEXT_ARRAY)]).await?;
        created.extend(rows.iter().map(|row| Created { id: row.get(0), started: Started::of(row) }));
        left = rest;
    }
    Ok(created)
}

/// The result of creating one pipeline.
pub(crate) fn only(created: Vec<Created>) -> Result<Created, Error> {
    created.into_iter().next().ok_or_else(|| Error::Invalid("the create returned no row".into()))
}

pub(crate) async fn summary(client: &impl Sql, id: i64) -> Result<Pipeline, Error> {
    let params: Params = &[(&id, Type::INT8)];
    let rows = query(client, include_str!("../../sql/operate/pipeline.sql"), params).await?;
    pipeline(rows.first().ok_or(Error::NotFound(id, MISSING))?)
}

pub(crate) async fn get(client: &impl Sql, id: i64) -> Result<PipelineDetail, Error> {
    let summary = summary(client, id).await?;
    let rows = query(client, include_str!("../../sql/operate/steps.sql"), &[(&id, Type::INT8)]).await?;
    Ok(PipelineDetail { summary, steps: rows.iter().map(step).collect::<Result<_, Error>>()? })
}

pub(crate) async fn list(client: &impl Sql, filter: &PipelineFilter) -> Result<PipelinePage, Error> {
    filter.name.as_deref().map_or(Ok(()), |name| check_name("pipeline", name))?;
    let (before, limit) = page(filter.before, filter.limit)?;
    let is_filtered = filter.name.is_some() || filter.state.is_some();
    let window = if is_filtered { WINDOW } else { limit };
    let params: Params = &[
        (&before, Type::INT8),
        (&filter.name, Type::TEXT),
        (&filter.state.map(PipelineState::as_str), Type::TEXT),
        (&limit, Type::INT8),
        (&window, Type::INT8),
    ];
    let rows = query(client, include_str!("../../sql/operate/pipelines.sql"), params).await?;
    let floor: Option<i64> = rows.first().and_then(|row| row.get("floor"));
    let found = rows.iter().filter(|row| row.get::<_, Option<i64>>("id").is_some());
    let pipelines = found.map(pipeline).collect::<Result<Vec<Pipeline>, Error>>()?;
    let last = pipelines.last().map(|one| one.id).filter(|_| pipelines.len() as i64 == limit);
    Ok(PipelinePage { pipelines, next: last.or(floor) })
}

/// Returns whether it had not ended, and whether the cancel of a running job was requested.
pub(crate) async fn cancel(client: &impl Sql, actor: &str, id: i64) -> Result<(bool, bool), Error> {
    let params: Params = &[(&id, Type::INT8), (&actor, Type::TEXT)];
    let rows = query(client, include_str!("../../sql/operate/cancel_pipeline.sql"), params).await?;
    let row = rows.first().ok_or(Error::NotFound(id, MISSING))?;
    Ok((row.get(0), row.get(1)))
}

/// Returns whether there was something to run again, and what has started.
pub(crate) async fn retry(client: &impl Sql, actor: &str, id: i64) -> Result<(bool, Started), Error> {
    let params: Params = &[(&id, Type::INT8), (&actor, Type::TEXT)];
    let rows = query(client, include_str!("../../sql/operate/retry_pipeline.sql"), params).await?;
    let row = rows.first().ok_or(Error::NotFound(id, MISSING))?;
    Ok((row.get(0), Started::of(row)))
}

fn pipeline(row: &Row) -> Result<Pipeline, Error> {
    let (steps, open): (i32, i32) = (row.get("steps"), row.get("open"));
    Ok(Pipeline {
        id: row.get("id"),
        name: row.get("name"),
        state: row.get::<_, &str>("state").parse()?,
        on_failure: row.get::<_, &str>("on_failure").parse()?,
        steps: unsigned(steps),
        ended: unsigned(steps - open),
        failed: unsigned(row.get("failed")),
        created_at: row.get("created_at"),
        cancelled_at: row.get("cancelled_at"),
        finished_at: row.get("finished_at"),
    })
}

fn step(row: &Row) -> Result<Step, Error> {
    Ok(Step {
        name: row.get("name"),
        state: row.get::<_, &str>("state").parse()?,
        after: row.get("parents"),
        kind: row.get("kind"),
        queue: row.get("queue"),
        job_id: row.get("job_id"),
        ended_at: row.get("ended_at"),
        result: row.get("result"),
        result_left_out: row.get("result_left_out"),
        redacted: row.get("redacted"),
    })
}
