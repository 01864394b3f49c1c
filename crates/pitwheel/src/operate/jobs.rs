//! Lists of jobs, and one job in detail.

use std::time::SystemTime;

use serde_json::Value;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::error::Error;
use crate::job::new_job::{check_key, check_name};
use crate::job::state::State;
use crate::operate::page::page;
use crate::postgres::{Params, Sql, query};

/// A page with a filter scans at most this many rows, then returns a cursor.
const WINDOW: i64 = 10_000;

/// Why a job was not found.
pub(crate) const MISSING: &str = "no job had this id, or its history was pruned";

/// Which jobs to list. The default is the newest 50.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Only this queue.
    pub queue: Option<String>,
    /// Only this kind.
    pub kind: Option<String>,
    /// Only this state.
    pub state: Option<State>,
    /// Only this key.
    pub key: Option<String>,
    /// Only finished jobs.
    pub finished: bool,
    /// Only jobs of kinds that are not redacted.
    pub without_redacted: bool,
    /// Only ids below this one: the cursor of the page before.
    pub before: Option<i64>,
    /// Jobs per page, at most 1,000; 0 means 50.
    pub limit: usize,
}

impl Filter {
    fn check(&self) -> Result<(), Error> {
        self.queue.as_deref().map_or(Ok(()), |queue| check_name("queue", queue))?;
        self.kind.as_deref().map_or(Ok(()), |kind| check_name("kind", kind))?;
        self.key.as_deref().map_or(Ok(()), check_key)?;
        Ok(())
    }

    /// How many live, running, finished, and dead or cancelled jobs are scanned.
    fn windows(&self, limit: i64) -> [i64; 4] {
        let all = self.queue.is_none() && self.kind.is_none() && self.key.is_none() && !self.without_redacted;
        let window = if all { limit } else { WINDOW };
        match self.state {
            None if self.finished => [0, 0, window, 0],
            None => [window, 0, window, 0],
            Some(State::Waiting | State::Blocked) => [WINDOW, 0, 0, 0],
            Some(State::Running) => [0, window, 0, 0],
            Some(State::Done) => [0, 0, WINDOW, 0],
            Some(State::Dead | State::Cancelled) => [0, 0, 0, WINDOW],
        }
    }
}

/// One page of a list of jobs.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct JobPage {
    /// The jobs, newest first; fewer than the limit, even none, when few of the scanned rows match.
    pub jobs: Vec<JobSummary>,
    /// The cursor of the next page, for [`Filter::before`]; `None`: this is the last page.
    pub next: Option<i64>,
}

/// A job in a list.
#[derive(Debug, Clone, PartialEq)]
pub struct JobSummary {
    /// Its id.
    pub id: i64,
    /// Its kind.
    pub kind: String,
    /// The queue it waits in, or waited in.
    pub queue: String,
    /// Its state.
    pub state: State,
    /// -9 to 9, higher first.
    pub priority: i16,
    /// The number of attempts so far, including a running one.
    pub attempt: i32,
    /// The maximum number of attempts.
    pub max_attempts: i32,
    /// Its key.
    pub key: Option<String>,
    /// The name of its lane, as JSON text.
    pub lane: Option<String>,
    /// The time at which it is, or was, due. Of a blocked job: the earliest time at which it runs.
    pub run_at: SystemTime,
    /// When it was enqueued.
    pub enqueued_at: SystemTime,
    /// When its last attempt was claimed.
    pub claimed_at: Option<SystemTime>,
    /// When it was done, buried or cancelled.
    pub finished_at: Option<SystemTime>,
    /// The progress that its handler reported, between 0 and 1.
    pub progress: Option<f32>,
    /// The note that its handler reported with the progress.
    pub note: Option<String>,
    /// Whether it waits, and no live worker takes its kind.
    pub unserved: bool,
    /// Whether its kind is redacted (`docs/glossary.md`). Servers hide its values from some callers; the library hides nothing.
    pub redacted: bool,
}

/// Everything about one job.
#[derive(Debug, Clone, PartialEq)]
pub struct JobDetail {
    /// The columns of a list.
    pub summary: JobSummary,
    /// The number of its claims so far.
    pub fence: i64,
    /// How many times its worker died while running it. Crashes are not counted as attempts.
    pub crashes: i16,
    /// How long an attempt may take, in milliseconds.
    pub timeout_ms: Option<i64>,
    /// When a cancel was requested while it ran.
    pub cancel_requested_at: Option<SystemTime>,
    /// The name of the worker that holds it, or held it last.
    pub worker: Option<String>,
    /// The id of the recurring job that it is a run of.
    pub recurring: Option<i64>,
    /// The id of the pipeline that it is a step of.
    pub pipeline: Option<i64>,
    /// The name of the step.
    pub step: Option<String>,
    /// The payload, as it was enqueued.
    pub payload: String,
    /// The metadata, as it was enqueued.
    pub metadata: Option<String>,
    /// The result of its handler, as JSON text.
    pub result: Option<String>,
    /// Its failed attempts, oldest first: attempt, cause, message, worker, at.
    pub errors: Value,
}

pub(crate) async fn jobs(client: &impl Sql, filter: &Filter) -> Result<JobPage, Error> {
    filter.check()?;
    let (before, limit) = page(filter.before, filter.limit)?;
    let state = filter.state.map(State::as_str);
    let [live, running, finished, unhappy] = filter.windows(limit);
    let params: Params = &[
        (&before, Type::INT8),
        (&filter.queue, Type::TEXT),
        (&filter.kind, Type::TEXT),
        (&state, Type::TEXT),
        (&filter.key, Type::TEXT),
        (&limit, Type::INT8),
        (&live, Type::INT8),
        (&running, Type::INT8),
        (&finished, Type::INT8),
        (&unhappy, Type::INT8),
        (&filter.without_redacted, Type::BOOL),
    ];
    let rows = query(client, include_str!("../../sql/operate/jobs.sql"), params).await?;
    let floor: Option<i64> = rows.first().and_then(|row| row.get("floor"));
    let found = rows.iter().filter(|row| row.get::<_, Option<i64>>("id").is_some());
    let jobs = found.map(summary).collect::<Result<Vec<JobSummary>, Error>>()?;
    let last = jobs.last().map(|job| job.id).filter(|_| jobs.len() as i64 == limit);
    Ok(JobPage { jobs, next: last.or(floor) })
}

pub(crate) async fn jobs_by_id(client: &impl Sql, ids: &[i64]) -> Result<Vec<JobSummary>, Error> {
    let rows =
        query(client, include_str!("../../sql/operate/jobs_by_id.sql"), &[(&ids, Type::INT8_ARRAY)]).await?;
    rows.iter().map(summary).collect()
}

pub(crate) async fn job(client: &impl Sql, id: i64) -> Result<JobDetail, Error> {
    let rows = query(client, include_str!("../../sql/operate/job.sql"), &[(&id, Type::INT8)]).await?;
    let row = rows.first().ok_or(Error::NotFound(id, MISSING))?;
    Ok(JobDetail {
        summary: summary(row)?,
        fence: row.get("fence"),
        crashes: row.get("crashes"),
        timeout_ms: row.get("timeout_ms"),
        cancel_requested_at: row.get("cancel_requested_at"),
        worker: row.get("worker"),
        recurring: row.get("recurring"),
        pipeline: row.get("pipeline"),
        step: row.get("step"),
        payload: row.get("payload"),
        metadata: row.get("metadata"),
        result: row.get("result"),
        errors: row.get("errors"),
    })
}

pub(crate) fn summary(row: &Row) -> Result<JobSummary, Error> {
    Ok(JobSummary {
        id: row.get("id"),
        kind: row.get("kind"),
        queue: row.get("queue"),
        state: row.get::<_, &str>("state").parse()?,
        priority: row.get("priority"),
        attempt: row.get("attempt"),
        max_attempts: row.get("max_attempts"),
        key: row.get("key"),
        lane: row.get("lane"),
        run_at: row.get("run_at"),
        enqueued_at: row.get("enqueued_at"),
        claimed_at: row.get("claimed_at"),
        finished_at: row.get("finished_at"),
        progress: row.get("progress"),
        note: row.get("note"),
        unserved: row.get("unserved"),
        redacted: row.get("redacted"),
    })
}
