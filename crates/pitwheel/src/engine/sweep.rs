//! Releasing the jobs of workers that died. Every node sweeps; there is no leader.

use std::time::{Duration, Instant};

use tokio_postgres::types::Type;

use crate::engine::enqueue::{millis, unsigned};
use crate::engine::settle::settle;
use crate::error::Error;
use crate::job::claim::{Claim, Settled};
use crate::job::ending::{Ending, Settlement, after_crash};
use crate::metrics;
use crate::postgres::{Params, Sql, query};

/// Holds per sweep, with up to 500 jobs each, so that one sweep stays short.
const HOLDS_MAX: i64 = 20;

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

/// Declares the workers dead whose lease has expired, and releases the jobs of dead workers.
///
/// Does nothing if the last sweep of any node is less than `tick` ago. After a gap longer than `gap_max` it extends the leases
/// instead: workers could not renew either.
pub async fn sweep(client: &impl Sql, tick: Duration, gap_max: Duration) -> Result<Swept, Error> {
    let begun = Instant::now();
    let params: Params = &[(&millis(tick), Type::INT8), (&millis(gap_max), Type::INT8)];
    let rows = query(client, include_str!("../../sql/engine/sweep.sql"), params).await?;
    let Some(row) = rows.first() else {
        return Ok(Swept::default());
    };
    let mut swept =
        Swept { leases_extended: row.get("leases_extended"), dead: row.get("dead"), ..Swept::default() };
    (swept.released, swept.buried) = settle_abandoned(client).await?;
    metrics::swept(swept.released, swept.buried);
    metrics::maintained("sweep", begun.elapsed());
    Ok(swept)
}

/// Settles the jobs that dead workers still hold; returns how many were released and how many buried. Fenced like any other
/// settle, so two sweeps, or a sweep and a worker that comes back, cannot both write.
pub async fn settle_abandoned(client: &impl Sql) -> Result<(usize, usize), Error> {
    let rows =
        query(client, include_str!("../../sql/engine/abandoned_jobs.sql"), &[(&HOLDS_MAX, Type::INT8)])
            .await?;
    let mut holds: Vec<i64> = rows.iter().map(|row| row.get("hold")).collect();
    holds.sort_unstable();
    holds.dedup();
    if holds.is_empty() {
        return Ok((0, 0));
    }
    let held = rows.iter().filter_map(|row| {
        let id: Option<i64> = row.get("id");
        id.map(|id| Settlement {
            claim: Claim { id, fence: row.get("fence") },
            ending: after_crash(row.get("crashes"), unsigned(row.get("attempt")), row.get("worker")),
        })
    });
    let batch: Vec<Settlement> = held.collect();
    let settled = settle(client, &batch, &[]).await?;
    query(client, include_str!("../../sql/engine/drop_holds.sql"), &[(&holds, Type::INT8_ARRAY)]).await?;
    let written = batch.iter().zip(settled).filter(|(_, settled)| *settled == Some(Settled::Written));
    let (buried, released): (Vec<_>, Vec<_>) =
        written.partition(|(settlement, _)| matches!(settlement.ending, Ending::Dead { .. }));
    Ok((released.len(), buried.len()))
}
