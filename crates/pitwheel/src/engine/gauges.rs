//! What a metrics scrape reads from the database.

use tokio_postgres::{Client, Row};

use crate::error::Error;
use crate::postgres::query;

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
    let rows = query(client, include_str!("../../sql/engine/in_flight.sql"), &[]).await?;
    let running = |row: &Row| InFlight {
        queue: row.get("queue"),
        jobs: row.get("jobs"),
        longest_seconds: row.get("longest_seconds"),
    };
    Ok(rows.iter().map(running).collect())
}
