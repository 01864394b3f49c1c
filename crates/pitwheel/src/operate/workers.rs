//! Workers: lists, and commands to quiet, drain and resume them.

use std::time::SystemTime;

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::error::Error;
use crate::operate::page::page;
use crate::postgres::{Params, Sql, query};

/// A worker: a process that is connected to Postgres, or a gRPC stream of a remote one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerSummary {
    /// Its id.
    pub id: i64,
    /// Its name; not necessarily unique.
    pub name: String,
    /// `direct`, to Postgres, or `grpc`.
    pub transport: String,
    /// The queues that it takes jobs from.
    pub queues: Vec<String>,
    /// The kinds that it handles.
    pub kinds: Vec<String>,
    /// How many jobs it runs at a time.
    pub slots: i32,
    /// How many jobs it runs now, counted up to 1,000.
    pub running: i64,
    /// When it registered.
    pub started_at: SystemTime,
    /// When its lease expires.
    pub lease_until: SystemTime,
    /// Since when it is quiet: it gets no more jobs.
    pub quiet_at: Option<SystemTime>,
    /// Since when it is draining: it ends when its running jobs have ended.
    pub drain_at: Option<SystemTime>,
    /// When it ended, or was declared dead.
    pub dead_at: Option<SystemTime>,
}

impl WorkerSummary {
    /// Its state: `alive`, `quiet`, `draining` or `dead`.
    pub fn state(&self) -> &'static str {
        match (self.dead_at, self.drain_at, self.quiet_at) {
            (Some(_), ..) => "dead",
            (_, Some(_), _) => "draining",
            (_, _, Some(_)) => "quiet",
            _ => "alive",
        }
    }
}

pub(crate) async fn workers(
    client: &impl Sql,
    before: Option<i64>,
    limit: usize,
    dead: bool,
) -> Result<Vec<WorkerSummary>, Error> {
    let (before, limit) = page(before, limit)?;
    let params: Params = &[(&before, Type::INT8), (&dead, Type::BOOL), (&limit, Type::INT8)];
    let rows = query(client, include_str!("../../sql/operate/workers.sql"), params).await?;
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

/// A command to a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerCommand {
    /// It gets no more jobs.
    Quiet,
    /// It gets no more jobs, and ends when its running jobs have ended. This cannot be undone.
    Drain,
    /// It gets jobs again.
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

/// Returns whether such a worker is running and not draining.
pub(crate) async fn command_worker(
    client: &impl Sql,
    actor: &str,
    worker: i64,
    command: WorkerCommand,
) -> Result<bool, Error> {
    let params: Params = &[(&worker, Type::INT8), (&command.as_str(), Type::TEXT), (&actor, Type::TEXT)];
    let rows = query(client, include_str!("../../sql/operate/command_worker.sql"), params).await?;
    Ok(!rows.is_empty())
}
