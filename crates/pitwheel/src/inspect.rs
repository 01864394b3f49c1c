//! What people ask about jobs and queues. Lists never read a payload, and every count has an end.

use std::time::SystemTime;

use serde_json::Value;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

use crate::db;
use crate::error::Error;

/// Rows per page at the most.
const PAGE_MAX: usize = 1000;
/// Counts stop here: people need to know that it is many, not how many.
const COUNT_MAX: i64 = 10_000;

/// Where a job stands. Being due is a time, not a state: see `run_at`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// Not held by anybody: due, or for later.
    Waiting,
    /// Held by a worker.
    Running,
    /// Completed.
    Done,
    /// Buried: out of attempts, given up by its handler, or the cause of crashes.
    Dead,
    /// Cancelled.
    Cancelled,
}

impl State {
    /// All of them, in the order of a job's life.
    pub const ALL: [State; 5] = [State::Waiting, State::Running, State::Done, State::Dead, State::Cancelled];

    /// The word used everywhere: tables, CLI, API.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Waiting => "waiting",
            State::Running => "running",
            State::Done => "done",
            State::Dead => "dead",
            State::Cancelled => "cancelled",
        }
    }
}

impl std::str::FromStr for State {
    type Err = Error;

    fn from_str(word: &str) -> Result<State, Error> {
        let found = State::ALL.into_iter().find(|state| state.as_str() == word);
        found.ok_or_else(|| {
            Error::Invalid(format!("state `{word}` is not one of waiting, running, done, dead, cancelled"))
        })
    }
}

/// Which jobs to list. The default is the newest fifty of all.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Only this queue.
    pub queue: Option<String>,
    /// Only this kind.
    pub kind: Option<String>,
    /// Only this state.
    pub state: Option<State>,
    /// Only ids below this one: the last id of the page before.
    pub before: Option<i64>,
    /// How many, at most 1000; fifty when 0.
    pub limit: usize,
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
    /// Where it stands.
    pub state: State,
    /// -9 to 9, higher first.
    pub priority: i16,
    /// Attempts so far, the running one included.
    pub attempt: i32,
    /// Attempts there are.
    pub max_attempts: i32,
    /// Its key.
    pub key: Option<String>,
    /// When it is, or was, due.
    pub run_at: SystemTime,
    /// When it was enqueued.
    pub enqueued_at: SystemTime,
    /// When its last attempt began.
    pub claimed_at: Option<SystemTime>,
    /// When it was settled for good.
    pub finished_at: Option<SystemTime>,
    /// Between 0 and 1, as its handler said.
    pub progress: Option<f32>,
    /// What its handler said with it.
    pub note: Option<String>,
}

/// Everything about one job.
#[derive(Debug, Clone, PartialEq)]
pub struct JobDetail {
    /// What a list shows.
    pub summary: JobSummary,
    /// How often it was claimed.
    pub fence: i64,
    /// How often its worker died under it, beside the attempts.
    pub crashes: i16,
    /// How long an attempt may take, in milliseconds.
    pub timeout_ms: Option<i64>,
    /// When somebody asked to cancel it.
    pub cancel_requested_at: Option<SystemTime>,
    /// The worker that holds it, or held it last.
    pub worker: Option<String>,
    /// The payload, as it was enqueued.
    pub payload: String,
    /// The metadata, as it was enqueued.
    pub metadata: Option<String>,
    /// What its handler gave back.
    pub result: Option<String>,
    /// Its failed attempts, oldest first: attempt, cause, message, worker, at.
    pub errors: Value,
}

/// A queue and what is in it. Counts stop at 10,000 jobs looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueSummary {
    /// Its name.
    pub name: String,
    /// Since when it is paused, by itself or with all queues.
    pub paused_at: Option<SystemTime>,
    /// Jobs that are due and not held.
    pub waiting: i64,
    /// Jobs that are held.
    pub running: i64,
    /// Jobs whose time has not come.
    pub later: i64,
    /// Whether there are more than were counted.
    pub capped: bool,
    /// The time since which the oldest of the counted waits.
    pub oldest_due_at: Option<SystemTime>,
}

pub(crate) async fn jobs(client: &Client, filter: &Filter) -> Result<Vec<JobSummary>, Error> {
    if filter.limit > PAGE_MAX {
        return Err(Error::Invalid(format!(
            "limit {} is above {PAGE_MAX}: ask for the next page with `before`",
            filter.limit
        )));
    }
    let limit = if filter.limit == 0 { 50 } else { filter.limit as i64 };
    let before = filter.before.unwrap_or(i64::MAX);
    let state = filter.state.map(State::as_str);
    let params: db::Params = &[
        (&before, Type::INT8),
        (&filter.queue, Type::TEXT),
        (&filter.kind, Type::TEXT),
        (&state, Type::TEXT),
        (&limit, Type::INT8),
    ];
    let rows = db::query(client, include_str!("../sql/jobs.sql"), params).await?;
    rows.iter().map(summary).collect()
}

pub(crate) async fn job(client: &Client, id: i64) -> Result<JobDetail, Error> {
    let rows = db::query(client, include_str!("../sql/job.sql"), &[(&id, Type::INT8)]).await?;
    let row = rows.first().ok_or(Error::NotFound(id, "it never was, or its history was pruned"))?;
    Ok(JobDetail {
        summary: summary(row)?,
        fence: row.get("fence"),
        crashes: row.get("crashes"),
        timeout_ms: row.get("timeout_ms"),
        cancel_requested_at: row.get("cancel_requested_at"),
        worker: row.get("worker"),
        payload: row.get("payload"),
        metadata: row.get("metadata"),
        result: row.get("result"),
        errors: row.get("errors"),
    })
}

pub(crate) async fn queues(client: &Client) -> Result<Vec<QueueSummary>, Error> {
    let rows = db::query(client, include_str!("../sql/queues.sql"), &[(&COUNT_MAX, Type::INT8)]).await?;
    let queue = |row: &Row| {
        let (waiting, running, later): (i64, i64, i64) =
            (row.get("waiting"), row.get("running"), row.get("later"));
        let all_paused_at: Option<SystemTime> = row.get("all_paused_at");
        QueueSummary {
            name: row.get("name"),
            paused_at: row.get::<_, Option<SystemTime>>("paused_at").or(all_paused_at),
            waiting,
            running,
            later,
            capped: waiting + running + later >= COUNT_MAX,
            oldest_due_at: row.get("oldest_due_at"),
        }
    };
    Ok(rows.iter().map(queue).collect())
}

fn summary(row: &Row) -> Result<JobSummary, Error> {
    Ok(JobSummary {
        id: row.get("id"),
        kind: row.get("kind"),
        queue: row.get("queue"),
        state: row.get::<_, &str>("state").parse()?,
        priority: row.get("priority"),
        attempt: row.get("attempt"),
        max_attempts: row.get("max_attempts"),
        key: row.get("key"),
        run_at: row.get("run_at"),
        enqueued_at: row.get("enqueued_at"),
        claimed_at: row.get("claimed_at"),
        finished_at: row.get("finished_at"),
        progress: row.get("progress"),
        note: row.get("note"),
    })
}
