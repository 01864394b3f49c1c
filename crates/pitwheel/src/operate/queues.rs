//! Queues: lists, pause and resume.

use std::time::SystemTime;

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::error::Error;
use crate::job::new_job::check_name;
use crate::postgres::{Params, Sql, query};

/// The counts of all queues together stop here: beyond it, an exact number is not worth its cost.
const COUNT_MAX: i64 = 10_000;
/// Queues of a list: producers can invent any number of names. Those that have settings or that running workers take come first. A shorter
/// list has all queues that have live jobs or settings.
pub const QUEUES_LISTED_MAX: usize = 1000;

/// A queue and its jobs. Counting stops after 10,000 jobs of all queues together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueSummary {
    /// Its name.
    pub name: String,
    /// Since when it is paused, alone or with all queues; `None`: it is not paused.
    pub paused_at: Option<SystemTime>,
    /// The number of jobs that are due and waiting.
    pub waiting: i64,
    /// The number of running jobs.
    pub running: i64,
    /// The number of jobs that are due later.
    pub later: i64,
    /// The number of jobs behind another one of their lane.
    pub blocked: i64,
    /// Whether counting stopped before all jobs were counted.
    pub capped: bool,
    /// When the longest waiting of the counted jobs was due.
    pub oldest_due_at: Option<SystemTime>,
}

pub(crate) async fn queues(client: &impl Sql) -> Result<Vec<QueueSummary>, Error> {
    let listed_max = QUEUES_LISTED_MAX as i64;
    let params: Params = &[(&COUNT_MAX, Type::INT8), (&listed_max, Type::INT8)];
    let rows = query(client, include_str!("../../sql/operate/queues.sql"), params).await?;
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
            blocked: row.get("blocked"),
            capped: row.get("capped"),
            oldest_due_at: row.get("oldest_due_at"),
        }
    };
    Ok(rows.iter().map(queue).collect())
}

/// The row that holds the pause of all queues.
const EVERY_QUEUE: &str = "*";

pub(crate) async fn pause(client: &impl Sql, actor: &str, queue: Option<&str>) -> Result<(), Error> {
    let params: Params = &[(&row_name(queue)?, Type::TEXT), (&actor, Type::TEXT)];
    query(client, include_str!("../../sql/operate/pause.sql"), params).await?;
    Ok(())
}

/// Returns whether it was paused.
pub(crate) async fn resume(client: &impl Sql, actor: &str, queue: Option<&str>) -> Result<bool, Error> {
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
