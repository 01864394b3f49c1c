//! Giving back the jobs of workers that died. Every node may sweep; nobody leads.

use std::time::{Duration, Instant};

use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::engine::enqueue::{millis, unsigned};
use crate::engine::settle::settle;
use crate::error::Error;
use crate::job::claim::{Claim, Settled};
use crate::job::ending::{Ending, Settlement, after_crash};
use crate::metrics;
use crate::postgres::{Params, query};

/// Holds taken back at a time: up to 500 jobs each, so that one pass stays short.
const HOLDS_MAX: i64 = 20;

/// What one sweep found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Nobody had swept for so long that leases were extended instead.
    pub leases_extended: bool,
    /// The names of the workers declared dead.
    pub dead: Vec<String>,
    /// Jobs that wait again.
    pub released: usize,
    /// Jobs buried because they were running at too many deaths.
    pub buried: usize,
}

/// Ticks, declares dead the workers whose lease ran out, and gives back what the dead hold.
///
/// `tick` is how often anybody needs to sweep; after a gap longer than `gap_max` nobody is declared dead.
pub async fn sweep(client: &Client, tick: Duration, gap_max: Duration) -> Result<Swept, Error> {
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

/// Settles, in the place of dead workers, what they still hold. Fenced like any other settle, so two sweepers, or a dead
/// worker that wakes up, cannot both write.
pub async fn settle_abandoned(client: &Client) -> Result<(usize, usize), Error> {
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
    client
        .execute_typed(include_str!("../../sql/engine/drop_holds.sql"), &[(&holds, Type::INT8_ARRAY)])
        .await?;
    let written = batch.iter().zip(settled).filter(|(_, settled)| *settled == Settled::Written);
    let (buried, released): (Vec<_>, Vec<_>) =
        written.partition(|(settlement, _)| matches!(settlement.ending, Ending::Dead { .. }));
    Ok((released.len(), buried.len()))
}
