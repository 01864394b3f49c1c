//! Recovering a job whose worker is gone and that no sweep has given back.

use std::time::Duration;

use tokio_postgres::types::Type;

use crate::engine::enqueue::millis;
use crate::error::Error;
use crate::operate::jobs::MISSING;
use crate::postgres::{Params, Sql, query};

/// Recovers the job. Returns its queue.
pub(crate) async fn recover(
    client: &impl Sql,
    actor: &str,
    id: i64,
    stale: Duration,
) -> Result<String, Error> {
    let params: Params = &[(&id, Type::INT8), (&millis(stale), Type::INT8), (&actor, Type::TEXT)];
    let rows = query(client, include_str!("../../sql/operate/recover.sql"), params).await?;
    let row = rows.first().ok_or(Error::NotFound(id, MISSING))?;
    match row.get::<_, &str>("outcome") {
        "recovered" => Ok(row.get("queue")),
        "not_stale" => {
            let silent: Option<f64> = row.get("silent_seconds");
            Err(Error::NotStale(
                id,
                format!(
                    "its worker renewed its lease {:.0} s ago, which is less than {:.0} s",
                    silent.unwrap_or_default(),
                    stale.as_secs_f64()
                ),
            ))
        }
        "not_running" => Err(Error::NotStale(id, "it is not running".into())),
        _ => Err(Error::NotStale(id, "it is finished".into())),
    }
}
