//! What people ask about jobs and queues. Lists never read a payload, and every count has an end.

use std::time::SystemTime;

use serde_json::Value;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

use crate::db;
use crate::error::Error;
use crate::job::{check_key, check_name};

/// Rows per page at the most.
const PAGE_MAX: usize = 1000;
/// Counts stop here, all queues together: people need to know that it is many, not how many.
const COUNT_MAX: i64 = 10_000;
/// How many rows a page with a filter looks at before it says where to go on.
const WINDOW: i64 = 10_000;

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
    /// Only this key.
    pub key: Option<String>,
    /// Only finished jobs.
    pub finished: bool,
    /// Only ids below this one: the last id of the page before.
    pub before: Option<i64>,
    /// How many, at most 1000; fifty when 0.
    pub limit: usize,
}

impl Filter {
    fn check(&self) -> Result<(), Error> {
        self.queue.as_deref().map_or(Ok(()), |queue| check_name("queue", queue))?;
        self.kind.as_deref().map_or(Ok(()), |kind| check_name("kind", kind))?;
        self.key.as_deref().map_or(Ok(()), check_key)?;
        Ok(())
    }

    /// How many live, running, finished, and dead or cancelled jobs are looked at.
    fn windows(&self, limit: i64) -> [i64; 4] {
        let all = self.queue.is_none() && self.kind.is_none() && self.key.is_none();
        let window = if all { limit } else { WINDOW };
        match self.state {
            None if self.finished => [0, 0, window, 0],
            None => [window, 0, window, 0],
            Some(State::Waiting) => [WINDOW, 0, 0, 0],
            Some(State::Running) => [0, window, 0, 0],
            Some(State::Done) => [0, 0, WINDOW, 0],
            Some(State::Dead | State::Cancelled) => [0, 0, 0, WINDOW],
        }
    }
}

/// One page of a list of jobs.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct JobPage {
    /// The jobs, newest first; fewer than asked for, even none, when few of those that were looked at match.
    pub jobs: Vec<JobSummary>,
    /// What `before` must be for the next page; `None`: there is none.
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
    /// Whether payload, metadata and result are kept from those who may only look.
    pub redacted: bool,
}

/// A worker: a process with a connection to Postgres, or a stream of one that has none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerSummary {
    /// Its id.
    pub id: i64,
    /// The name it gave itself.
    pub name: String,
    /// `direct`, to Postgres, or `grpc`.
    pub transport: String,
    /// What it takes from.
    pub queues: Vec<String>,
    /// What it runs.
    pub kinds: Vec<String>,
    /// How much at a time.
    pub slots: i32,
    /// How much now, counted up to 1,000.
    pub running: i64,
    /// When it came.
    pub started_at: SystemTime,
    /// Until when it need not be heard of.
    pub lease_until: SystemTime,
    /// Since when it is given nothing more.
    pub quiet_at: Option<SystemTime>,
    /// Since when it shall end.
    pub drain_at: Option<SystemTime>,
    /// When it ended, or was declared dead.
    pub dead_at: Option<SystemTime>,
}

impl WorkerSummary {
    /// Where it stands, in a word.
    pub fn state(&self) -> &'static str {
        match (self.dead_at, self.drain_at, self.quiet_at) {
            (Some(_), ..) => "dead",
            (_, Some(_), _) => "draining",
            (_, _, Some(_)) => "quiet",
            _ => "alive",
        }
    }
}

/// A kind about which something was said, or that living workers run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KindSummary {
    /// Its name.
    pub name: String,
    /// Whether payloads and results are kept from those who may only look.
    pub redacted: bool,
    /// How many living workers run it.
    pub workers: i64,
}

/// A change that somebody made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// Its id.
    pub id: i64,
    /// When.
    pub at: SystemTime,
    /// Who.
    pub actor: String,
    /// What, as `job.cancel`.
    pub action: String,
    /// To which queue, worker or token; of a reschedule, to which time.
    pub subject: Option<String>,
    /// To which jobs.
    pub job_ids: Option<Vec<i64>>,
}

/// A queue and what is in it. Counts stop at 10,000 jobs looked at, shared by all queues.
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

pub(crate) async fn jobs(client: &Client, filter: &Filter) -> Result<JobPage, Error> {
    filter.check()?;
    let (before, limit) = page(filter.before, filter.limit)?;
    let state = filter.state.map(State::as_str);
    let [live, running, finished, unhappy] = filter.windows(limit);
    let params: db::Params = &[
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
    ];
    let rows = db::query(client, include_str!("../sql/jobs.sql"), params).await?;
    let floor: Option<i64> = rows.first().and_then(|row| row.get("floor"));
    let found = rows.iter().filter(|row| row.get::<_, Option<i64>>("id").is_some());
    let jobs = found.map(summary).collect::<Result<Vec<JobSummary>, Error>>()?;
    let last = jobs.last().map(|job| job.id).filter(|_| jobs.len() as i64 == limit);
    Ok(JobPage { jobs, next: last.or(floor) })
}

pub(crate) async fn jobs_by_id(client: &Client, ids: &[i64]) -> Result<Vec<JobSummary>, Error> {
    let rows = db::query(client, include_str!("../sql/jobs_by_id.sql"), &[(&ids, Type::INT8_ARRAY)]).await?;
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
        redacted: row.get("redacted"),
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
            capped: row.get("capped"),
            oldest_due_at: row.get("oldest_due_at"),
        }
    };
    Ok(rows.iter().map(queue).collect())
}

pub(crate) async fn workers(
    client: &Client,
    before: Option<i64>,
    limit: usize,
    dead: bool,
) -> Result<Vec<WorkerSummary>, Error> {
    let (before, limit) = page(before, limit)?;
    let params: db::Params = &[(&before, Type::INT8), (&dead, Type::BOOL), (&limit, Type::INT8)];
    let rows = db::query(client, include_str!("../sql/workers.sql"), params).await?;
    let worker = |row: &Row| WorkerSummary {
        id: row.get("id"),
        name: row.get("name"),
        transport: row.get("transport"),
        queues: row.get("queues"),
        kinds: row.get("kinds"),
        slots: row.get("slots"),
        running: row.get("running"),
        started_at: row.get("started_at"),
        lease_until: row.get("lease_until"),
        quiet_at: row.get("quiet_at"),
        drain_at: row.get("drain_at"),
        dead_at: row.get("dead_at"),
    };
    Ok(rows.iter().map(worker).collect())
}

pub(crate) async fn kinds(client: &Client) -> Result<Vec<KindSummary>, Error> {
    let rows = db::query(client, include_str!("../sql/kinds.sql"), &[]).await?;
    let kind = |row: &Row| KindSummary {
        name: row.get("name"),
        redacted: row.get("redacted"),
        workers: row.get("workers"),
    };
    Ok(rows.iter().map(kind).collect())
}

pub(crate) async fn audit(
    client: &Client,
    before: Option<i64>,
    limit: usize,
) -> Result<Vec<AuditEntry>, Error> {
    let (before, limit) = page(before, limit)?;
    let params: db::Params = &[(&before, Type::INT8), (&limit, Type::INT8)];
    let rows = db::query(client, include_str!("../sql/audit.sql"), params).await?;
    let entry = |row: &Row| AuditEntry {
        id: row.get("id"),
        at: row.get("at"),
        actor: row.get("actor"),
        action: row.get("action"),
        subject: row.get("subject"),
        job_ids: row.get("job_ids"),
    };
    Ok(rows.iter().map(entry).collect())
}

/// Living workers of one transport and state.
#[derive(Debug)]
pub struct WorkerCount {
    /// `direct` or `grpc`.
    pub transport: String,
    /// `alive`, `quiet` or `draining`.
    pub state: String,
    /// How many.
    pub workers: i64,
    /// For how many jobs at a time, all together.
    pub slots: i64,
    /// How long ago the one that was silent longest was heard of.
    pub silent_seconds: f64,
}

/// The living workers.
pub async fn worker_counts(client: &Client) -> Result<Vec<WorkerCount>, Error> {
    let rows = db::query(client, include_str!("../sql/worker_counts.sql"), &[]).await?;
    let worker_counts = |row: &Row| WorkerCount {
        transport: row.get("transport"),
        state: row.get("state"),
        workers: row.get("workers"),
        slots: row.get("slots"),
        silent_seconds: row.get("silent_seconds"),
    };
    Ok(rows.iter().map(worker_counts).collect())
}

/// What runs of one queue.
#[derive(Debug)]
pub struct InFlight {
    /// The queue.
    pub queue: String,
    /// How many jobs.
    pub jobs: i64,
    /// For how long the longest.
    pub longest_seconds: f64,
}

/// What runs, by queue.
pub async fn in_flight(client: &Client) -> Result<Vec<InFlight>, Error> {
    let rows = db::query(client, include_str!("../sql/in_flight.sql"), &[]).await?;
    let running = |row: &Row| InFlight {
        queue: row.get("queue"),
        jobs: row.get("jobs"),
        longest_seconds: row.get("longest_seconds"),
    };
    Ok(rows.iter().map(running).collect())
}

/// Where a page begins, and how long it is.
fn page(before: Option<i64>, limit: usize) -> Result<(i64, i64), Error> {
    if limit > PAGE_MAX {
        return Err(Error::Invalid(format!(
            "limit {limit} is above {PAGE_MAX}: ask for the next page with `before`"
        )));
    }
    Ok((before.unwrap_or(i64::MAX), if limit == 0 { 50 } else { limit as i64 }))
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
