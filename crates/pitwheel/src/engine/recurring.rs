//! Planning the next runs that no settle has planned: a run was settled in SQL, was buried by the sweep, or a person has deleted it.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::engine::enqueue::unsigned;
use crate::engine::isolate::{Failures, Parts};
use crate::engine::settle_columns::Plans;
use crate::error::Error;
use crate::job::recurrence::{Clock, Plan, Recurrence};
use crate::metrics;
use crate::postgres::{Params, Sql, query};

/// Recurring jobs that are planned by one statement.
const PLAN_MAX: i64 = 500;
/// Statements per maintenance, so that one stays short.
const PAGES_MAX: usize = 20;
/// Recurring jobs per look for those whose live job is gone. A million are looked at in half an hour.
const LOOK_MAX: i64 = 1000;

/// What the time of the next run of each of these recurring jobs depends on, by id. One whose cadence cannot be read is left out, and
/// its run ends without a plan.
pub(crate) async fn recurrences(client: &impl Sql, ids: &[i64]) -> Result<HashMap<i64, Recurrence>, Error> {
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let sql = include_str!("../../sql/engine/recurrences.sql");
    let rows = client.rows(sql, &[(&ids, Type::INT8_ARRAY)]).await?;
    Ok(rows.iter().filter_map(|row| Some((row.get(0), recurrence(row).ok()?))).collect())
}

/// Reads a row by position, in the order of columns that recurrences.sql and unplanned.sql share.
fn recurrence(row: &Row) -> Result<Recurrence, Error> {
    let recurrence = carried(row.get(0), row, 1)?;
    Ok(Recurrence { consecutive_failures: unsigned(row.get(8)), carried: row.get(9), ..recurrence })
}

/// Reads what a run carries, from the columns that claims have too: the first of them is at `first`.
pub(crate) fn carried(id: i64, row: &Row, first: usize) -> Result<Recurrence, Error> {
    let (cadence, misfire): (&str, &str) = (row.get(first + 1), row.get(first + 2));
    let interval_ms: Option<i64> = row.get(first + 5);
    Ok(Recurrence {
        id,
        key: row.get(first),
        cadence: cadence.parse()?,
        misfire: misfire.parse()?,
        version: row.get(first + 3),
        planned_at: row.get(first + 4),
        interval: interval_ms.map(|ms| Duration::from_millis(ms.unsigned_abs())),
        consecutive_failures: 0,
        carried: true,
        clock: Clock { read: row.get(first + 6), at: Instant::now() },
    })
}

pub(crate) fn time(us: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(us.unsigned_abs())
}

/// What a look for recurring jobs to plan did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedRuns {
    /// How many runs were enqueued.
    pub enqueued: usize,
    /// The id above which the next look begins.
    pub next: i64,
}

/// Plans the recurring jobs that are enabled and not planned, above this id. Those that Postgres refuses, and those that another
/// transaction has locked, are passed: they hold up no others, and are planned when the looks begin again at 0.
pub async fn plan_runs(client: &impl Sql, above: i64) -> Result<PlannedRuns, Error> {
    let (mut looked, mut failures) = (PlannedRuns { enqueued: 0, next: above }, Failures::default());
    for _ in 0..PAGES_MAX {
        let sql = include_str!("../../sql/engine/unplanned.sql");
        let rows = query(client, sql, &[(&PLAN_MAX, Type::INT8), (&looked.next, Type::INT8)]).await?;
        let (enqueued, left) = enqueue_planned(client, &rows, &mut failures).await?;
        looked.enqueued += enqueued;
        if let Some(left) = left {
            looked.next = left - 1;
            break;
        }
        looked.next = rows.last().filter(|_| rows.len() as i64 == PLAN_MAX).map_or(0, |row| row.get(0));
        if looked.next == 0 {
            break;
        }
    }
    metrics::planned(looked.enqueued);
    Ok(looked)
}

/// Returns how many runs were enqueued, and the first recurring job that was not tried, because too many were refused.
async fn enqueue_planned(
    client: &impl Sql,
    unplanned: &[Row],
    failures: &mut Failures,
) -> Result<(usize, Option<i64>), Error> {
    let mut unreadable = Vec::new();
    let mut plans: Vec<Planned> = Vec::with_capacity(unplanned.len());
    for row in unplanned {
        let id: i64 = row.get(0);
        let plan = recurrence(row).and_then(|recurrence| {
            let none = || Error::Invalid("its cadence has no further time".into());
            recurrence.without_run(row.get(10), recurrence.clock.read, fastrand::f64()).ok_or_else(none)
        });
        match plan {
            Ok(plan) => plans.push((id, Ok(plan))),
            Err(error) => {
                unreadable.push(id);
                plans.push((id, Err((row.get(4), format!("disabled: {error}")))));
            }
        }
    }
    if plans.is_empty() {
        return Ok((0, None));
    }
    if !unreadable.is_empty() {
        tracing::warn!(recurring = ?unreadable, "disabling recurring jobs that cannot be planned");
    }
    let (mut parts, mut enqueued) = (Parts::of(&plans, failures), 0);
    while let Some(part) = parts.next() {
        match write_plans(client, part).await {
            Ok(count) => enqueued += count,
            Err(error) => parts.failed(part, error)?,
        }
    }
    log_refused(&parts, |(id, _)| *id);
    Ok((enqueued, parts.first_left().map(|(id, _)| *id)))
}

/// The id of a recurring job, and its plan, or its version and why it cannot be planned.
type Planned = (i64, Result<Plan, (i64, String)>);

async fn write_plans(client: &impl Sql, plans: &[Planned]) -> Result<usize, Error> {
    let ids: Vec<i64> = plans.iter().map(|(id, _)| *id).collect();
    let mut columns = Plans::default();
    for (_, plan) in plans {
        match plan {
            Ok(plan) => columns.push(Some(plan)),
            Err((version, reason)) => columns.push_unplannable(*version, reason),
        }
    }
    let [versions, next_us, anchors_us, reasons, intervals_ms, skipped] = columns.params();
    let params: Params =
        &[(&ids, Type::INT8_ARRAY), versions, next_us, anchors_us, reasons, intervals_ms, skipped];
    let rows = query(client, include_str!("../../sql/engine/plan_runs.sql"), params).await?;
    Ok(rows.len())
}

fn log_refused<T>(parts: &Parts<'_, T>, id: impl Fn(&T) -> i64) {
    if let Some((refused, error)) = parts.refused() {
        let recurring: Vec<i64> = refused.iter().map(|one| id(one)).collect();
        tracing::warn!(%error, ?recurring, "cannot enqueue the next runs, will try again");
    }
}

/// Enqueues the next runs of enabled recurring jobs again that are gone, a page at a time: above this id. Returns the id from
/// which to go on.
pub async fn restore_lost_runs(client: &impl Sql, above: i64) -> Result<i64, Error> {
    let params: Params = &[(&above, Type::INT8), (&LOOK_MAX, Type::INT8)];
    let rows = query(client, include_str!("../../sql/engine/lost_runs.sql"), params).await?;
    let Some(row) = rows.first() else { return Ok(0) };
    let lost: Option<Vec<i64>> = row.get("lost");
    let left = match lost {
        Some(lost) => restore(client, &lost).await?,
        None => None,
    };
    Ok(left.map_or_else(|| row.get("last"), |left| left - 1))
}

/// Returns the first recurring job that was not tried, because too many were refused.
async fn restore(client: &impl Sql, lost: &[i64]) -> Result<Option<i64>, Error> {
    let sql = include_str!("../../sql/engine/restore_runs.sql");
    let mut failures = Failures::default();
    let (mut parts, mut restored) = (Parts::of(lost, &mut failures), 0);
    while let Some(part) = parts.next() {
        match query(client, sql, &[(&part, Type::INT8_ARRAY)]).await {
            Ok(rows) => restored += rows.len(),
            Err(error) => parts.failed(part, error)?,
        }
    }
    if restored > 0 {
        tracing::warn!(
            recurring = restored,
            "the next runs of recurring jobs were gone: they are enqueued or planned again"
        );
        metrics::lost_runs(restored);
    }
    log_refused(&parts, |id| *id);
    Ok(parts.first_left().copied())
}
