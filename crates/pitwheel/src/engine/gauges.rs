//! What a metrics scrape reads from the database.

use tokio_postgres::Row;

use crate::error::Error;
use crate::postgres::{Sql, query};

/// The number of running workers of one transport and state.
#[derive(Debug)]
pub struct WorkerCount {
    /// `direct` or `grpc`.
    pub transport: String,
    /// `alive`, `quiet` or `draining`.
    pub state: String,
    /// The number of workers.
    pub workers: i64,
    /// The sum of their slots.
    pub slots: i64,
    /// The longest time since a renewal among them.
    pub silent_seconds: f64,
}

/// Counts the running workers.
pub async fn worker_counts(client: &impl Sql) -> Result<Vec<WorkerCount>, Error> {
    let rows = query(client, include_str!("../../sql/engine/worker_counts.sql"), &[]).await?;
    let worker_counts = |row: &Row| WorkerCount {
        transport: row.get("transport"),
        state: row.get("state"),
        workers: row.get("workers"),
        slots: row.get("slots"),
        silent_seconds: row.get("silent_seconds"),
    };
    Ok(rows.iter().map(worker_counts).collect())
}

/// The running jobs of one queue.
#[derive(Debug)]
pub struct InFlight {
    /// The name of the queue.
    pub queue: String,
    /// The number of running jobs.
    pub jobs: i64,
    /// How long the longest of them has been running.
    pub longest_seconds: f64,
}

/// Counts the running jobs, by queue.
pub async fn in_flight(client: &impl Sql) -> Result<Vec<InFlight>, Error> {
    let rows = query(client, include_str!("../../sql/engine/in_flight.sql"), &[]).await?;
    let running = |row: &Row| InFlight {
        queue: row.get("queue"),
        jobs: row.get("jobs"),
        longest_seconds: row.get("longest_seconds"),
    };
    Ok(rows.iter().map(running).collect())
}
