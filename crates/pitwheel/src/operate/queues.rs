//! Queues: lists, pause and resume.

use std::time::SystemTime;

use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

use crate::error::Error;
use crate::job::new_job::check_name;
use crate::postgres::{Params, query};

/// Counts stop here, all queues together: people need to know that it is many, not how many.
const COUNT_MAX: i64 = 10_000;
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

pub(crate) async fn queues(client: &Client) -> Result<Vec<QueueSummary>, Error> {
    let rows =
        query(client, include_str!("../../sql/operate/queues.sql"), &[(&COUNT_MAX, Type::INT8)]).await?;
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

/// The name under which a pause of all queues is kept.
const EVERY_QUEUE: &str = "*";

pub(crate) async fn pause(client: &Client, actor: &str, queue: Option<&str>) -> Result<(), Error> {
    let params: Params = &[(&row_name(queue)?, Type::TEXT), (&actor, Type::TEXT)];
    client.execute_typed(include_str!("../../sql/operate/pause.sql"), params).await?;
    Ok(())
}

/// Whether it was paused.
pub(crate) async fn resume(client: &Client, actor: &str, queue: Option<&str>) -> Result<bool, Error> {
    let params: Params = &[(&row_name(queue)?, Type::TEXT), (&actor, Type::TEXT)];
    let rows = query(client, include_str!("../../sql/operate/resume.sql"), params).await?;
    Ok(!rows.is_empty())
}

fn row_name(queue: Option<&str>) -> Result<&str, Error> {
    match queue {
        None => Ok(EVERY_QUEUE),
        Some(queue) => check_name("queue", queue).map(|()| queue),
    }
}
