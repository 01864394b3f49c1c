//! Repairing pipelines whose steps have lost their jobs: a person has deleted one by hand, or an older program has finished it.

use tokio_postgres::types::Type;

use crate::engine::isolate::{Failures, Parts};
use crate::error::Error;
use crate::metrics;
use crate::postgres::{Params, Sql, query};

/// Pipelines per look.
const LOOK_MAX: i64 = 1000;
/// Steps per look, except for those of its last pipeline.
const LOOK_STEPS_MAX: i64 = 10_000;

/// Ends the live steps of running pipelines whose jobs are gone, a page at a time: above this id. Returns the id from which to go on.
/// A pipeline that Postgres refuses, for example because a trigger refuses the job of its next step, is passed.
pub async fn repair_pipelines(client: &impl Sql, above: i64) -> Result<i64, Error> {
    let params: Params = &[(&above, Type::INT8), (&LOOK_MAX, Type::INT8), (&LOOK_STEPS_MAX, Type::INT8)];
    let rows = query(client, include_str!("../../sql/engine/lost_steps.sql"), params).await?;
    let Some(row) = rows.first() else { return Ok(0) };
    let lost: Option<Vec<i64>> = row.get("lost");
    let left = match lost {
        Some(lost) => repair(client, &lost).await?,
        None => None,
    };
    Ok(left.map_or_else(|| row.get("last"), |left| left - 1))
}

/// Returns the first pipeline that was not tried, because too many were refused.
async fn repair(client: &impl Sql, lost: &[i64]) -> Result<Option<i64>, Error> {
    let sql = include_str!("../../sql/engine/repair_pipelines.sql");
    let mut failures = Failures::default();
    let (mut parts, mut steps) = (Parts::of(lost, &mut failures), 0);
    while let Some(part) = parts.next() {
        match query(client, sql, &[(&part, Type::INT8_ARRAY)]).await {
            Ok(rows) => steps += rows.first().map_or(0, |row| row.get::<_, i64>(0)),
            Err(error) => parts.failed(part, error)?,
        }
    }
    if steps > 0 {
        tracing::warn!(steps, "the jobs of steps were gone: their pipelines go on");
        metrics::lost_steps(steps.unsigned_abs());
    }
    if let Some((pipelines, error)) = parts.refused() {
        tracing::warn!(%error, ?pipelines, "the jobs of steps are gone and these pipelines cannot go on, will try again");
    }
    Ok(parts.first_left().copied())
}
