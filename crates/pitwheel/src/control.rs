//! What people do to jobs and queues: cancel, retry, pause, resume.

use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::db;
use crate::error::Error;
use crate::job::check_name;

/// What a cancel came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// It was waiting and will not run.
    AtOnce,
    /// It is running; its handler was asked to stop.
    Requested,
}

pub(crate) async fn cancel(client: &Client, id: i64) -> Result<Cancelled, Error> {
    let rows = db::query(client, include_str!("../sql/cancel.sql"), &[(&id, Type::INT8)]).await?;
    match rows.first().map(|row| row.get(0)) {
        None => Err(Error::NotFound(id, "no live job has this id")),
        Some(true) => Ok(Cancelled::Requested),
        Some(false) => Ok(Cancelled::AtOnce),
    }
}

/// Gives back the queue in which the job waits again.
pub(crate) async fn retry(client: &Client, id: i64) -> Result<String, Error> {
    let rows = db::query(client, include_str!("../sql/retry.sql"), &[(&id, Type::INT8)]).await;
    let rows = rows.map_err(|error| match error {
        Error::Database(refusal) if refusal.refused_with("23505") => Error::KeyTaken(id),
        other => other,
    })?;
    let found = rows.first().map(|row| row.get(0));
    found.ok_or(Error::NotFound(id, "no dead or cancelled job has this id"))
}

/// The name under which a pause of all queues is kept.
const EVERY_QUEUE: &str = "*";

pub(crate) async fn pause(client: &Client, queue: Option<&str>) -> Result<(), Error> {
    let name = row_name(queue)?;
    client.execute_typed(include_str!("../sql/pause.sql"), &[(&name, Type::TEXT)]).await?;
    Ok(())
}

/// Whether it was paused.
pub(crate) async fn resume(client: &Client, queue: Option<&str>) -> Result<bool, Error> {
    let name = row_name(queue)?;
    let rows = db::query(client, include_str!("../sql/resume.sql"), &[(&name, Type::TEXT)]).await?;
    Ok(!rows.is_empty())
}

fn row_name(queue: Option<&str>) -> Result<&str, Error> {
    match queue {
        None => Ok(EVERY_QUEUE),
        Some(queue) => check_name("queue", queue).map(|()| queue),
    }
}
