//! The audit log.

use std::time::SystemTime;

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::error::Error;
use crate::operate::page::page;
use crate::postgres::{Params, Sql, query};

/// A change in the audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// Its id.
    pub id: i64,
    /// When the change was made.
    pub at: SystemTime,
    /// Who made it: a token, a user at a terminal, or an application.
    pub actor: String,
    /// What was done, as `job.cancel` or `queue.pause`.
    pub action: String,
    /// The queue, worker or token that was changed; for a reschedule, the new time.
    pub subject: Option<String>,
    /// The jobs that were changed.
    pub job_ids: Option<Vec<i64>>,
}

pub(crate) async fn audit(
    client: &impl Sql,
    before: Option<i64>,
    limit: usize,
) -> Result<Vec<AuditEntry>, Error> {
    let (before, limit) = page(before, limit)?;
    let params: Params = &[(&before, Type::INT8), (&limit, Type::INT8)];
    let rows = query(client, include_str!("../../sql/operate/audit.sql"), params).await?;
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
