//! The audit log.

use std::time::SystemTime;

use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

use crate::error::Error;
use crate::operate::page::page;
use crate::postgres::{Params, query};

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

pub(crate) async fn audit(
    client: &Client,
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
