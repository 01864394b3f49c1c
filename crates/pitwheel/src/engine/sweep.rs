//! Releasing the jobs of workers that died. Every node sweeps; there is no leader.

use std::time::{Duration, Instant};

use tokio_postgres::types::Type;

use crate::engine::enqueue::{millis, unsigned};
use crate::engine::settle::{DROP_HOLDS, settle};
use crate::engine::settle_columns::SettleResult;
use crate::error::Error;
use crate::job::claim::Claim;
use crate::job::ending::{Ending, Settlement, after_crash};
use crate::metrics;
use crate::postgres::{Params, Sql, query};

/// Holds per page, with up to 500 jobs each.
const HOLDS_MAX: i64 = 20;
/// Pages per sweep, so that one sweep stays short.
const PAGES_MAX: usize = 50;

/// The result of a sweep.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// No sweep had happened for so long that leases were extended instead.
    pub leases_extended: bool,
    /// The names of the workers declared dead.
    pub dead: Vec<String>,
    /// How many jobs were released.
    pub released: usize,
    /// How many jobs were buried, after too many crashes.
    pub buried: usize,
}

/// Declares the workers dead whose lease has expired, and releases the jobs of dead workers. See [`declare_dead`].
pub async fn sweep(client: &impl Sql, tick: Duration, gap_max: Duration) -> Result<Swept, Error> {
    let Some(mut swept) = declare_dead(client, tick, gap_max).await? else { return Ok(Swept::default()) };
    (swept.released, swept.buried) = settle_abandoned(client).await?;
    Ok(swept)
}

/// Declares the workers dead whose lease has expired. `None`: the last sweep of any node is less than `tick` ago. After a gap
/// longer than `gap_max` it moves the leases on instead: workers could not renew either.
pub async fn declare_dead(
    client: &impl Sql,
    tick: Duration,
    gap_max: Duration,
) -> Result<Option<Swept>, Error> {
    let begun = Instant::now();
    let params: Params = &[(&millis(tick), Type::INT8), (&millis(gap_max), Type::INT8)];
    let rows = query(client, include_str!("../../sql/engine/sweep.sql"), params).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    metrics::maintained("sweep", begun.elapsed());
    Ok(Some(Swept { leases_extended: row.get("leases_extended"), dead: row.get("dead"), ..Swept::default() }))
}

/// Settles the jobs that dead workers still hold; returns how many were released and how many buried. Fenced like any other
/// settle, so two sweeps, or a sweep and a worker that comes back, cannot both write.
pub async fn settle_abandoned(client: &impl Sql) -> Result<(usize, usize), Error> {
    let (mut released, mut buried, mut above) = (0, 0, 0);
    for _ in 0..PAGES_MAX {
        let page = settle_page(client, above).await?;
        (released, buried) = (released + page.released, buried + page.buried);
        match page.last_hold {
            Some(last) => above = last,
            None => break,
        }
    }
    metrics::swept(released, buried);
    Ok((released, buried))
}

/// Deletes workers that have been dead for long, or of which there are many. Returns how many.
pub async fn forget_workers(client: &impl Sql) -> Result<i64, Error> {
    let mut forgotten = 0;
    for _ in 0..PAGES_MAX {
        let rows = query(client, include_str!("../../sql/engine/forget_workers.sql"), &[]).await?;
        match rows.first().map_or(0, |row| row.get::<_, i64>(0)) {
            0 => break,
            count => forgotten += count,
        }
    }
    Ok(forgotten)
}

/// A page of the holds of dead workers.
#[derive(Default)]
struct Page {
    released: usize,
    buried: usize,
    /// Where the next page begins; `None`: this was the last one.
    last_hold: Option<i64>,
}

async fn settle_page(client: &impl Sql, above: i64) -> Result<Page, Error> {
    let rows = query(
        client,
        include_str!("../../sql/engine/abandoned_jobs.sql"),
        &[(&HOLDS_MAX, Type::INT8), (&above, Type::INT8)],
    )
    .await?;
    let mut holds: Vec<i64> = rows.iter().map(|row| row.get("hold")).collect();
    holds.sort_unstable();
    holds.dedup();
    if holds.is_empty() {
        return Ok(Page::default());
    }
    let held = rows.iter().filter_map(|row| {
        let id: Option<i64> = row.get("id");
        let claim = Claim { id: id?, fence: row.get("fence"), holder: row.get("holder") };
        let ending = after_crash(row.get("crashes"), unsigned(row.get("attempt")), row.get("worker"));
        Some(Settlement::new(claim, ending))
    });
    let batch: Vec<Settlement> = held.collect();
    let settled = settle(client, &batch, &[]).await?;
    query(client, DROP_HOLDS, &[(&holds, Type::INT8_ARRAY)]).await?;
    let written = batch.iter().zip(settled).filter(|(_, result)| *result == SettleResult::Written);
    let (buried, released): (Vec<_>, Vec<_>) =
        written.partition(|(settlement, _)| matches!(settlement.ending, Ending::Dead { .. }));
    let last_hold = holds.last().copied().filter(|_| holds.len() as i64 == HOLDS_MAX);
    Ok(Page { released: released.len(), buried: buried.len(), last_hold })
}
