//! Changes of jobs: cancel, retry, delete, reschedule.

use std::collections::HashMap;
use std::time::SystemTime;

use tokio_postgres::types::Type;

use crate::error::Error;
use crate::postgres::{Params, Sql, query};

/// Jobs per change: it is one short statement and one line of the audit log.
const CHANGE_MAX: usize = 1000;

/// A change of jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Cancels waiting jobs at once, and asks the handlers of running ones to stop.
    Cancel,
    /// Enqueues dead or cancelled jobs again, due now, with all their attempts.
    Retry,
    /// Deletes waiting or finished jobs for good.
    Delete,
    /// Moves waiting jobs to another time; `None`, or a time in the past, means now.
    Reschedule(Option<SystemTime>),
}

/// The result of a change for one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changed {
    /// The job was changed.
    Done,
    /// The job is running; its handler was asked to stop.
    Requested,
    /// No job has this id and a state that allows the change.
    NotFound,
    /// It cannot be retried while a live job has its kind and key.
    KeyTaken,
}

/// The result of a cancel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// The job was waiting and will not run.
    AtOnce,
    /// The job is running; its handler was asked to stop.
    Requested,
}

/// The results of a change, by job.
#[derive(Debug, Default)]
pub(crate) struct ChangeReport {
    pub(crate) jobs: HashMap<i64, Changed>,
    /// The queues in which something is due now.
    pub(crate) due: Vec<String>,
    /// The lanes of jobs that are live again, as JSON text.
    pub(crate) lanes: Vec<String>,
}

impl Change {
    /// Why a job was not found.
    pub fn missing(self) -> &'static str {
        match self {
            Change::Cancel => "no live job has this id",
            Change::Retry => "no dead or cancelled job has this id",
            Change::Delete => "no waiting or finished job has this id; a running job can be cancelled",
            Change::Reschedule(_) => "no waiting job has this id",
        }
    }
}

/// Changes jobs in one statement.
pub(crate) async fn change(
    client: &impl Sql,
    actor: &str,
    ids: &[i64],
    change: Change,
) -> Result<ChangeReport, Error> {
    if ids.len() > CHANGE_MAX {
        return Err(Error::Invalid(format!("{} jobs at a time are too many: send {CHANGE_MAX}", ids.len())));
    }
    let mut report = ChangeReport::default();
    match change {
        Change::Cancel => cancel(client, actor, ids, &mut report).await?,
        Change::Retry => retry(client, actor, ids, &mut report).await?,
        Change::Delete => delete(client, actor, ids, &mut report).await?,
        Change::Reschedule(at) => reschedule(client, actor, ids, at, &mut report).await?,
    }
    for id in ids {
        report.jobs.entry(*id).or_insert(Changed::NotFound);
    }
    report.due.sort_unstable();
    report.due.dedup();
    Ok(report)
}

async fn cancel(client: &impl Sql, actor: &str, ids: &[i64], report: &mut ChangeReport) -> Result<(), Error> {
    let params: Params = &[(&ids, Type::INT8_ARRAY), (&actor, Type::TEXT)];
    for row in query(client, include_str!("../../sql/operate/cancel.sql"), params).await? {
        report.jobs.insert(row.get(0), if row.get(1) { Changed::Requested } else { Changed::Done });
    }
    Ok(())
}

/// On a key conflict, bisects the batch to find the job whose key is taken.
async fn retry(client: &impl Sql, actor: &str, ids: &[i64], report: &mut ChangeReport) -> Result<(), Error> {
    let params: Params = &[(&ids, Type::INT8_ARRAY), (&actor, Type::TEXT)];
    match query(client, include_str!("../../sql/operate/retry.sql"), params).await {
        Ok(rows) => {
            for row in rows {
                report.jobs.insert(row.get(0), Changed::Done);
                report.due.push(row.get(1));
                report.lanes.extend(row.get::<_, Option<String>>(2));
            }
        }
        Err(Error::Database(refusal)) if refusal.refused_with("23505") => match ids {
            [id] => {
                report.jobs.insert(*id, Changed::KeyTaken);
            }
            _ => {
                let (first, second) = ids.split_at(ids.len() / 2);
                Box::pin(retry(client, actor, first, report)).await?;
                Box::pin(retry(client, actor, second, report)).await?;
            }
        },
        Err(error) => return Err(error),
    }
    Ok(())
}

async fn delete(client: &impl Sql, actor: &str, ids: &[i64], report: &mut ChangeReport) -> Result<(), Error> {
    let params: Params = &[(&ids, Type::INT8_ARRAY), (&actor, Type::TEXT)];
    let rows = query(client, include_str!("../../sql/operate/delete.sql"), params).await?;
    report.jobs.extend(rows.iter().map(|row| (row.get(0), Changed::Done)));
    Ok(())
}

async fn reschedule(
    client: &impl Sql,
    actor: &str,
    ids: &[i64],
    at: Option<SystemTime>,
    report: &mut ChangeReport,
) -> Result<(), Error> {
    let params: Params = &[(&ids, Type::INT8_ARRAY), (&at, Type::TIMESTAMPTZ), (&actor, Type::TEXT)];
    for row in query(client, include_str!("../../sql/operate/reschedule.sql"), params).await? {
        report.jobs.insert(row.get(0), Changed::Done);
        report.due.push(row.get(1));
    }
    Ok(())
}
