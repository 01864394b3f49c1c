//! Releasing the jobs of workers that died. Every node sweeps; there is no leader.

use std::collections::BTreeMap;
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
/// Jobs that are released together, from whole holds.
const RELEASED_TOGETHER: usize = 500;
/// Jobs that Postgres refuses to release, or that are locked, after which a sweep ends. The next one goes on behind them: each costs
/// statements of its own, and they hold up no others.
const UNWRITTEN_MAX: usize = 100;

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
    let abandoned = settle_abandoned(client, 0).await?;
    (swept.released, swept.buried) = (abandoned.released, abandoned.buried);
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

/// What became of the jobs of dead workers.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Abandoned {
    /// How many were released.
    pub released: usize,
    /// How many were buried.
    pub buried: usize,
    /// The hold above which the next look begins.
    pub next: i64,
    unwritten: usize,
}

/// Settles the jobs that dead workers still hold, from the hold above this one on. Fenced like any other settle, so two sweeps, or a
/// sweep and a worker that comes back, cannot both write.
pub async fn settle_abandoned(client: &impl Sql, above: i64) -> Result<Abandoned, Error> {
    let mut abandoned = Abandoned { next: above, ..Abandoned::default() };
    for _ in 0..PAGES_MAX {
        settle_page(client, &mut abandoned).await?;
        if abandoned.next == 0 || abandoned.unwritten >= UNWRITTEN_MAX {
            break;
        }
    }
    metrics::swept(abandoned.released, abandoned.buried);
    Ok(abandoned)
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

/// Settles the jobs of a page of holds.
async fn settle_page(client: &impl Sql, abandoned: &mut Abandoned) -> Result<(), Error> {
    let sql = include_str!("../../sql/engine/abandoned_jobs.sql");
    let rows = query(client, sql, &[(&HOLDS_MAX, Type::INT8), (&abandoned.next, Type::INT8)]).await?;
    let mut holds: BTreeMap<i64, Vec<Settlement>> = BTreeMap::new();
    for row in &rows {
        let jobs = holds.entry(row.get("hold")).or_default();
        if let Some(id) = row.get("id") {
            let claim = Claim { id, fence: row.get("fence"), holder: row.get("holder") };
            let ending = after_crash(row.get("crashes"), unsigned(row.get("attempt")), row.get("worker"));
            jobs.push(Settlement::new(claim, ending));
        }
    }
    let is_last = (holds.len() as i64) < HOLDS_MAX;
    let (mut settled, mut batch, mut left) = (Vec::new(), Vec::new(), holds.into_iter().peekable());
    while let Some((hold, jobs)) = left.next() {
        settled.push(hold);
        batch.extend(jobs);
        if left.peek().is_none() || batch.len() >= RELEASED_TOGETHER {
            settle_jobs(client, &std::mem::take(&mut batch), abandoned).await?;
            if abandoned.unwritten >= UNWRITTEN_MAX {
                break;
            }
        }
    }
    if !settled.is_empty() {
        query(client, DROP_HOLDS, &[(&settled, Type::INT8_ARRAY)]).await?;
    }
    let goes_on = left.peek().is_some() || !is_last;
    abandoned.next = settled.last().copied().filter(|_| goes_on).unwrap_or_default();
    Ok(())
}

async fn settle_jobs(
    client: &impl Sql,
    batch: &[Settlement],
    abandoned: &mut Abandoned,
) -> Result<(), Error> {
    for (job, result) in batch.iter().zip(settle(client, batch, &[]).await?) {
        match result {
            SettleResult::Written if matches!(job.ending, Ending::Dead { .. }) => abandoned.buried += 1,
            SettleResult::Written => abandoned.released += 1,
            SettleResult::Refused(_) | SettleResult::Locked => abandoned.unwritten += 1,
            SettleResult::Already | SettleResult::Lost => {}
        }
    }
    Ok(())
}
