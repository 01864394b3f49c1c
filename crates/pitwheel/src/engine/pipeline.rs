//! Repairing pipelines whose steps have lost their jobs: a person has deleted one by hand, or an older program has finished it.

use tokio_postgres::types::Type;

use crate::error::Error;
use crate::metrics;
use crate::postgres::{Params, Sql, query};

/// Pipelines per look.
const LOOK_MAX: i64 = 1000;
/// Steps per look, except for those of its last pipeline.
const LOOK_STEPS_MAX: i64 = 10_000;

/// Ends the live steps of running pipelines whose jobs are gone, a page at a time: above this id. Returns the id from which to go on.
pub async fn repair_pipelines(client: &impl Sql, above: i64) -> Result<i64, Error> {
    let params: Params = &[(&above, Type::INT8), (&LOOK_MAX, Type::INT8), (&LOOK_STEPS_MAX, Type::INT8)];
    let rows = query(client, include_str!("../../sql/engine/lost_steps.sql"), params).await?;
    let Some(row) = rows.first() else { return Ok(0) };
    let lost: Option<Vec<i64>> = row.get("lost");
    if let Some(lost) = lost {
        let sql = include_str!("../../sql/engine/repair_pipelines.sql");
        let repaired = query(client, sql, &[(&lost, Type::INT8_ARRAY)]).await?;
        let steps: i64 = repaired.first().map_or(0, |row| row.get(0));
        if steps > 0 {
            tracing::warn!(steps, "the jobs of steps were gone: their pipelines go on");
            metrics::lost_steps(steps.unsigned_abs());
        }
    }
    Ok(row.get("last"))
}
