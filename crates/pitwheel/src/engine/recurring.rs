//! Planning the next runs that no settle has planned: a run was settled in SQL, was buried by the sweep, or a person has deleted it.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio_postgres::types::Type;

use crate::engine::settle_columns::Plans;
use crate::error::Error;
use crate::job::cadence::Cadence;
use crate::job::misfire::Misfire;
use crate::job::recurrence::{Clock, Recurrence};
use crate::metrics;
use crate::postgres::{Params, Sql, query};

/// Recurring jobs that are planned by one statement.
const PLAN_MAX: i64 = 500;
/// Statements per maintenance, so that one stays short.
const PAGES_MAX: usize = 20;
/// Recurring jobs per look for those whose live job is gone. A million are looked at in half an hour.
const LOOK_MAX: i64 = 1000;

/// The columns of the view `recurrence`: id, key, cadence, misfire, version, anchor, interval, failures, now.
type State = (i64, String, String, String, i64, i64, Option<i64>, u32, i64);

/// What a claim read about the recurring job of a run. `None`: its cadence cannot be read, and the run ends without a plan.
pub(crate) fn recurrence(state: &str) -> Option<Box<Recurrence>> {
    parse(state).and_then(|parsed| parsed.recurrence.ok()).map(Box::new)
}

/// What the view says about a recurring job. Its cadence may be one that cannot be read.
struct Parsed {
    id: i64,
    version: i64,
    recurrence: Result<Recurrence, Error>,
}

fn parse(state: &str) -> Option<Parsed> {
    let (id, key, cadence, misfire, version, anchor_us, interval_ms, consecutive_failures, now_us): State =
        serde_json::from_str(state).ok()?;
    let read = || {
        let cadence: Cadence = cadence.parse()?;
        let misfire: Misfire = misfire.parse()?;
        Ok(Recurrence {
            id,
            key,
            planned_at: time(anchor_us),
            consecutive_failures,
            interval: interval_ms.map(|ms| Duration::from_millis(ms.unsigned_abs())),
            cadence,
            misfire,
            version,
            clock: Clock { read: time(now_us), at: Instant::now() },
        })
    };
    Some(Parsed { id, version, recurrence: read() })
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
        let states: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        let enqueued = enqueue_planned(client, &states).await?;
        planned += enqueued;
        if states.len() < PLAN_MAX as usize || enqueued == 0 {
            break;
        }
    }
    metrics::planned(planned);
    Ok(planned)
}

async fn enqueue_planned(client: &impl Sql, states: &[String]) -> Result<usize, Error> {
    let mut ids = Vec::with_capacity(states.len());
    let mut unreadable = Vec::new();
    let mut plans = Vec::with_capacity(states.len());
    for state in states {
        let Some(Parsed { id, version, recurrence }) = parse(state) else { continue };
        let plan = recurrence.and_then(|recurrence| {
            let none = || Error::Invalid("its cadence has no further time".into());
            recurrence.without_run(recurrence.clock.read, fastrand::f64()).ok_or_else(none)
        });
        match plan {
            Ok(plan) => plans.push((id, Ok(plan))),
            Err(error) => {
                unreadable.push(id);
                plans.push((id, Err((version, format!("disabled: {error}")))));
            }
        }
    }
    if plans.is_empty() {
        return Ok(0);
    }
    if !unreadable.is_empty() {
        tracing::warn!(recurring = ?unreadable, "disabling recurring jobs that cannot be planned");
    }
    let mut columns = Plans::default();
    for (id, plan) in &plans {
        ids.push(*id);
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

/// Enqueues the next runs of enabled recurring jobs again that are gone, a page at a time: above this id. Returns the id from
/// which to go on.
pub async fn restore_lost_runs(client: &impl Sql, above: i64) -> Result<i64, Error> {
    let params: Params = &[(&above, Type::INT8), (&LOOK_MAX, Type::INT8)];
    let rows = query(client, include_str!("../../sql/engine/lost_runs.sql"), params).await?;
    let Some(row) = rows.first() else { return Ok(0) };
    let lost: Option<Vec<i64>> = row.get("lost");
    if let Some(lost) = lost {
        let sql = include_str!("../../sql/engine/restore_runs.sql");
        let restored = query(client, sql, &[(&lost, Type::INT8_ARRAY)]).await?;
        if !restored.is_empty() {
            tracing::warn!(
                recurring = restored.len(),
                "the next runs of recurring jobs were gone: enqueued them again"
            );
            metrics::lost_runs(restored.len());
        }
    }
    Ok(row.get("last"))
}
