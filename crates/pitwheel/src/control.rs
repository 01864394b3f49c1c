//! What people do: cancel, retry, delete and reschedule jobs, pause queues, tell workers to end. Every statement writes into
//! the audit log what it changed, and who did it.

use std::collections::HashMap;
use std::time::SystemTime;

use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::db;
use crate::error::Error;
use crate::job::check_name;

/// Jobs per change: one statement, so that it is short, and one line of the audit log.
const CHANGE_MAX: usize = 1000;

/// What to do to jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// End them: at once when they wait, by asking their handler when they run.
    Cancel,
    /// Let dead or cancelled ones live again, due now, with all their attempts before them.
    Retry,
    /// Forget waiting or finished ones for good.
    Delete,
    /// Let waiting ones be due at another time; `None`, or one that has passed, is now.
    Reschedule(Option<SystemTime>),
}

/// What a change came to for one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changed {
    /// It was made.
    Done,
    /// The job is running; its handler was asked to stop.
    Requested,
    /// No job with this id is in a state for it.
    NotFound,
    /// It cannot live again while a live job has its kind and key.
    KeyTaken,
}

/// What a cancel came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// It was waiting and will not run.
    AtOnce,
    /// It is running; its handler was asked to stop.
    Requested,
}

/// An order for a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerCommand {
    /// It is given nothing more.
    Quiet,
    /// It is given nothing more, and ends when what it runs has ended. This cannot be taken back.
    Drain,
    /// It is given jobs again.
    Resume,
}

impl WorkerCommand {
    fn as_str(self) -> &'static str {
        match self {
            WorkerCommand::Quiet => "quiet",
            WorkerCommand::Drain => "drain",
            WorkerCommand::Resume => "resume",
        }
    }
}

/// What a change came to.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) jobs: HashMap<i64, Changed>,
    /// Where something is due now.
    pub(crate) due: Vec<String>,
}

impl Change {
    /// Why a job was not found.
    pub fn missing(self) -> &'static str {
        match self {
            Change::Cancel => "no live job has this id",
            Change::Retry => "no dead or cancelled job has this id",
            Change::Delete => "no waiting or finished job has this id; cancel one that runs",
            Change::Reschedule(_) => "no waiting job has this id",
        }
    }
}

/// Changes jobs, in one statement.
pub(crate) async fn change(
    client: &Client,
    actor: &str,
    ids: &[i64],
    change: Change,
) -> Result<Outcome, Error> {
    if ids.len() > CHANGE_MAX {
        return Err(Error::Invalid(format!("{} jobs at a time are too many: send {CHANGE_MAX}", ids.len())));
    }
    let mut outcome = Outcome::default();
    match change {
        Change::Cancel => cancel(client, actor, ids, &mut outcome).await?,
        Change::Retry => retry(client, actor, ids, &mut outcome).await?,
        Change::Delete => delete(client, actor, ids, &mut outcome).await?,
        Change::Reschedule(at) => reschedule(client, actor, ids, at, &mut outcome).await?,
    }
    for id in ids {
        outcome.jobs.entry(*id).or_insert(Changed::NotFound);
    }
    outcome.due.sort_unstable();
    outcome.due.dedup();
    Ok(outcome)
}

async fn cancel(client: &Client, actor: &str, ids: &[i64], outcome: &mut Outcome) -> Result<(), Error> {
    let params: db::Params = &[(&ids, Type::INT8_ARRAY), (&actor, Type::TEXT)];
    for row in db::query(client, include_str!("../sql/cancel.sql"), params).await? {
        outcome.jobs.insert(row.get(0), if row.get(1) { Changed::Requested } else { Changed::Done });
    }
    Ok(())
}

/// If one of them is in the way of a live job, half of them at a time, down to that one.
async fn retry(client: &Client, actor: &str, ids: &[i64], outcome: &mut Outcome) -> Result<(), Error> {
    let params: db::Params = &[(&ids, Type::INT8_ARRAY), (&actor, Type::TEXT)];
    match db::query(client, include_str!("../sql/retry.sql"), params).await {
        Ok(rows) => {
            for row in rows {
                outcome.jobs.insert(row.get(0), Changed::Done);
                outcome.due.push(row.get(1));
            }
        }
        Err(Error::Database(refusal)) if refusal.refused_with("23505") => match ids {
            [id] => {
                outcome.jobs.insert(*id, Changed::KeyTaken);
            }
            _ => {
                let (first, second) = ids.split_at(ids.len() / 2);
                Box::pin(retry(client, actor, first, outcome)).await?;
                Box::pin(retry(client, actor, second, outcome)).await?;
            }
        },
        Err(error) => return Err(error),
    }
    Ok(())
}

async fn delete(client: &Client, actor: &str, ids: &[i64], outcome: &mut Outcome) -> Result<(), Error> {
    let params: db::Params = &[(&ids, Type::INT8_ARRAY), (&actor, Type::TEXT)];
    let rows = db::query(client, include_str!("../sql/delete.sql"), params).await?;
    outcome.jobs.extend(rows.iter().map(|row| (row.get(0), Changed::Done)));
    Ok(())
}

async fn reschedule(
    client: &Client,
    actor: &str,
    ids: &[i64],
    at: Option<SystemTime>,
    outcome: &mut Outcome,
) -> Result<(), Error> {
    let params: db::Params = &[(&ids, Type::INT8_ARRAY), (&at, Type::TIMESTAMPTZ), (&actor, Type::TEXT)];
    for row in db::query(client, include_str!("../sql/reschedule.sql"), params).await? {
        outcome.jobs.insert(row.get(0), Changed::Done);
        outcome.due.push(row.get(1));
    }
    Ok(())
}

/// The name under which a pause of all queues is kept.
const EVERY_QUEUE: &str = "*";

pub(crate) async fn pause(client: &Client, actor: &str, queue: Option<&str>) -> Result<(), Error> {
    let params: db::Params = &[(&row_name(queue)?, Type::TEXT), (&actor, Type::TEXT)];
    client.execute_typed(include_str!("../sql/pause.sql"), params).await?;
    Ok(())
}

/// Whether it was paused.
pub(crate) async fn resume(client: &Client, actor: &str, queue: Option<&str>) -> Result<bool, Error> {
    let params: db::Params = &[(&row_name(queue)?, Type::TEXT), (&actor, Type::TEXT)];
    let rows = db::query(client, include_str!("../sql/resume.sql"), params).await?;
    Ok(!rows.is_empty())
}

fn row_name(queue: Option<&str>) -> Result<&str, Error> {
    match queue {
        None => Ok(EVERY_QUEUE),
        Some(queue) => check_name("queue", queue).map(|()| queue),
    }
}

/// Whether there was such a worker to take the order.
pub(crate) async fn command_worker(
    client: &Client,
    actor: &str,
    worker: i64,
    command: WorkerCommand,
) -> Result<bool, Error> {
    let params: db::Params = &[(&worker, Type::INT8), (&command.as_str(), Type::TEXT), (&actor, Type::TEXT)];
    let rows = db::query(client, include_str!("../sql/command_worker.sql"), params).await?;
    Ok(!rows.is_empty())
}

pub(crate) async fn redact(client: &Client, actor: &str, kind: &str, redacted: bool) -> Result<(), Error> {
    check_name("kind", kind)?;
    let params: db::Params = &[(&kind, Type::TEXT), (&redacted, Type::BOOL), (&actor, Type::TEXT)];
    client.execute_typed(include_str!("../sql/redact.sql"), params).await?;
    Ok(())
}
