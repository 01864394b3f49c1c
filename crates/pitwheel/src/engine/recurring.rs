//! Planning the next runs that no settle has planned: a run was settled in SQL, was buried by the sweep, or a person has deleted it.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::engine::enqueue::unsigned;
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
    let (cadence, misfire): (&str, &str) = (row.get(2), row.get(3));
    let interval_ms: Option<i64> = row.get(6);
    Ok(Recurrence {
        id: row.get(0),
        key: row.get(1),
        cadence: cadence.parse()?,
        misfire: misfire.parse()?,
        version: row.get(4),
        planned_at: row.get(5),
        interval: interval_ms.map(|ms| Duration::from_millis(ms.unsigned_abs())),
        consecutive_failures: unsigned(row.get(7)),
        clock: Clock { read: row.get(8), at: Instant::now() },
    })
}

pub(crate) fn time(us: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(us.unsigned_abs())
}

/// Plans the recurring jobs that are enabled and not planned. Returns how many runs were enqueued.
pub async fn plan_runs(client: &impl Sql) -> Result<usize, Error> {
    let mut planned = 0;
    for _ in 0..PAGES_MAX {
        let sql = include_str!("../../sql/engine/unplanned.sql");
        let rows = query(client, sql, &[(&PLAN_MAX, Type::INT8)]).await?;
        let enqueued = enqueue_planned(client, &rows).await?;
        planned += enqueued;
        if rows.len() < PLAN_MAX as usize || enqueued == 0 {
            break;
        }
    }
    metrics::planned(planned);
    Ok(planned)
}

async fn enqueue_planned(client: &impl Sql, unplanned: &[Row]) -> Result<usize, Error> {
    let mut unreadable = Vec::new();
    let mut plans: Vec<Planned> = Vec::with_capacity(unplanned.len());
    for row in unplanned {
        let id: i64 = row.get(0);
        let plan = recurrence(row).and_then(|recurrence| {
            let none = || Error::Invalid("its cadence has no further time".into());
            recurrence.without_run(row.get(9), recurrence.clock.read, fastrand::f64()).ok_or_else(none)
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
        return Ok(0);
    }
    if !unreadable.is_empty() {
        tracing::warn!(recurring = ?unreadable, "disabling recurring jobs that cannot be planned");
    }
    let mut enqueued = 0;
    let mut parts = vec![&plans[..]];
    while let Some(part) = parts.pop() {
        match write_plans(client, part).await {
            Ok(count) => enqueued += count,
            Err(error) => parts.extend(bisect(error, part, |(id, _)| *id)?),
        }
    }
    Ok(enqueued)
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

/// What to write instead of a part that Postgres refused: its halves, until the one that it refuses stands alone. That one is left for
/// later: a bad recurring job must not hold up the others.
fn bisect<T>(error: Error, part: &[T], id: impl Fn(&T) -> i64) -> Result<Vec<&[T]>, Error> {
    match (error, part) {
        (Error::Database(error), [only]) if error.refuses_values() => {
            tracing::warn!(%error, recurring = id(only), "cannot enqueue the next run, will try again");
            Ok(Vec::new())
        }
        (Error::Database(error), _) if error.refuses_values() => {
            let (first, rest) = part.split_at(part.len() / 2);
            Ok(vec![rest, first])
        }
        (error, _) => Err(error),
    }
}

/// Enqueues the next runs of enabled recurring jobs again that are gone, a page at a time: above this id. Returns the id from
/// which to go on.
pub async fn restore_lost_runs(client: &impl Sql, above: i64) -> Result<i64, Error> {
    let params: Params = &[(&above, Type::INT8), (&LOOK_MAX, Type::INT8)];
    let rows = query(client, include_str!("../../sql/engine/lost_runs.sql"), params).await?;
    let Some(row) = rows.first() else { return Ok(0) };
    let lost: Option<Vec<i64>> = row.get("lost");
    if let Some(lost) = lost {
        let sql = include_str!("../../sql/engine/restore_runs.sql");
        let mut restored = 0;
        let mut parts = vec![&lost[..]];
        while let Some(part) = parts.pop() {
            match query(client, sql, &[(&part, Type::INT8_ARRAY)]).await {
                Ok(rows) => restored += rows.len(),
                Err(error) => parts.extend(bisect(error, part, |id| *id)?),
            }
        }
        if restored > 0 {
            tracing::warn!(
                recurring = restored,
                "the next runs of recurring jobs were gone: enqueued them again"
            );
            metrics::lost_runs(restored);
        }
    }
    Ok(row.get("last"))
}
