//! Kinds: lists, and which of them are redacted.

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::error::Error;
use crate::job::new_job::check_name;
use crate::postgres::{Params, Sql, query};

/// A kind that has settings, or that running workers handle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KindSummary {
    /// Its name.
    pub name: String,
    /// Whether it is redacted (`docs/glossary.md`).
    pub redacted: bool,
    /// How many running workers handle it.
    pub workers: i64,
}

pub(crate) async fn kinds(client: &impl Sql) -> Result<Vec<KindSummary>, Error> {
    let rows = query(client, include_str!("../../sql/operate/kinds.sql"), &[]).await?;
    let kind = |row: &Row| KindSummary {
        name: row.get("name"),
        redacted: row.get("redacted"),
        workers: row.get("workers"),
    };
    Ok(rows.iter().map(kind).collect())
}

pub(crate) async fn redact(client: &impl Sql, actor: &str, kind: &str, redacted: bool) -> Result<(), Error> {
    check_name("kind", kind)?;
    let params: Params = &[(&kind, Type::TEXT), (&redacted, Type::BOOL), (&actor, Type::TEXT)];
    query(client, include_str!("../../sql/operate/redact.sql"), params).await?;
    Ok(())
}
