//! The maintenance that every node does: sweep, prune, plan recurring jobs, promote jobs of lanes, repair pipelines, and restore rows
//! and holds that are gone. There is no leader; `skip locked` keeps the nodes apart.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::Notify;
use tokio_postgres::types::Type;
use tokio_util::sync::CancellationToken;

use crate::engine::lanes::look_after_lanes;
use crate::engine::lost_holds::{Passes, restore_holds};
use crate::engine::pipeline::repair_pipelines;
use crate::engine::recurring::{plan_runs, restore_lost_runs};
use crate::engine::retry::RetryDelay;
use crate::engine::sweep::{Abandoned, declare_dead, forget_workers, settle_abandoned};
use crate::error::{DatabaseError, Error, LOCK_NOT_AVAILABLE};
use crate::job::limits::SPAN_MAX;
use crate::metrics;
use crate::postgres::{Ctid, Params, Pool, Session, Sql, query};

/// Renewals per lease: five may fail before the sixth is too late.
pub const RENEWALS: u32 = 6;
/// Sweeps per lease.
const SWEEPS: u32 = 20;
/// If no sweep happened for this part of a lease (a quarter), workers could not renew either. It must be below the part of
/// a lease that is left when its renewal is due (5/6), so that renewals come through first.
const GAP_PART: u32 = 4;
/// How often workers that are dead are forgotten.
const FORGET_EVERY: Duration = Duration::from_secs(60);
const PRUNE_EVERY: Duration = Duration::from_secs(3600);
/// Statements per prune, each for 1,000 pipelines, or 10,000 lanes or rows of the default partition, so that one prune ends.
const PRUNE_PAGES_MAX: usize = 1000;
/// Rows of the default partition per statement.
const PRUNED_TOGETHER: i32 = 10_000;
const PRUNE_AGAIN: Duration = Duration::from_secs(60);

/// How long a statement for a lease may take before it is given up: near the time until the next renewal is due, and never so
/// short that an ordinary delay exceeds it.
pub fn lease_limit(lease: Duration) -> Duration {
    (lease / RENEWALS).max(Duration::from_millis(500)).min(lease / 2)
}

/// Sweeps, through a pool for leases, prunes, plans and promotes, until `stop`. `name` is for logs. Each in a loop of its own: late sweeps
/// extend leases, so they wait for nothing else.
pub async fn maintain(
    (pool, lease_pool): (&Pool, &Pool),
    name: &str,
    lease: Duration,
    keep_history: Duration,
    stop: &CancellationToken,
) {
    let ticked = Notify::new();
    let sweeps = declare_dead_workers((pool, lease_pool), name, lease, &ticked, stop);
    let releases = release_abandoned(pool, name, &ticked, stop);
    let others = look_after_others(pool, name, lease / SWEEPS, keep_history, stop);
    tokio::join!(sweeps, releases, Box::pin(others), look_after_lanes(pool, name, stop));
}

async fn declare_dead_workers(
    (pool, lease_pool): (&Pool, &Pool),
    name: &str,
    lease: Duration,
    ticked: &Notify,
    stop: &CancellationToken,
) {
    let (tick, gap_max) = (lease / SWEEPS, lease / GAP_PART);
    let mut retry_delay = RetryDelay::default();
    while !stop.is_cancelled() {
        let declaring = async |client: Arc<Session>| declare_dead(&client, tick, gap_max).await;
        match lease_pool.run_or_borrow(pool, declaring).await {
            Ok(swept) => {
                if let Some(swept) = swept {
                    ticked.notify_one();
                    if !swept.dead.is_empty() || swept.leases_extended {
                        tracing::info!(worker = name, ?swept, "swept");
                    }
                }
                retry_delay.reset();
                pause(tick, stop).await;
            }
            Err(error) => {
                tracing::warn!(%error, worker = name, "cannot sweep, will try again");
                retry_delay.wait(stop).await;
            }
        }
    }
}

/// Releases the jobs of dead workers, after each sweep.
async fn release_abandoned(pool: &Pool, name: &str, ticked: &Notify, stop: &CancellationToken) {
    let mut above = 0;
    while stop.run_until_cancelled(ticked.notified()).await.is_some() {
        match pool.run(async |client| settle_abandoned(&client, above).await).await {
            Ok(abandoned) => {
                above = abandoned.next;
                let Abandoned { released, buried, .. } = abandoned;
                if released + buried > 0 {
                    tracing::info!(worker = name, released, buried, "released the jobs of dead workers");
                }
            }
            Err(error) => {
                above = 0;
                tracing::warn!(%error, worker = name, "cannot release the jobs of dead workers, will try again");
            }
        }
    }
}

/// Restores, plans, repairs, forgets and prunes, again and again.
async fn look_after_others(
    pool: &Pool,
    name: &str,
    tick: Duration,
    keep_history: Duration,
    stop: &CancellationToken,
) {
    let (mut next_prune, mut next_forget) = (Instant::now(), Instant::now());
    let (mut looked_up_to, mut planned_up_to, mut repaired_up_to) = (0, 0, 0);
    let mut passes = Passes::new();
    while !stop.is_cancelled() {
        let mut is_away = false;
        succeeded(name, "restore rows", restore_missing(pool, name, &mut passes).await, &mut is_away);
        if !is_away {
            succeeded(name, "restore holds", restore_lost_holds(pool, &mut passes).await, &mut is_away);
        }
        if !is_away {
            succeeded(name, "restore", restore(pool, &mut looked_up_to).await, &mut is_away);
        }
        if !is_away {
            succeeded(name, "plan", plan(pool, &mut planned_up_to).await, &mut is_away);
        }
        if !is_away {
            succeeded(name, "repair", repair(pool, &mut repaired_up_to).await, &mut is_away);
        }
        if !is_away && Instant::now() >= next_forget {
            let forgotten = pool.run(async |client| forget_workers(&client).await).await.map(drop);
            succeeded(name, "forget", forgotten, &mut is_away);
            next_forget = Instant::now() + FORGET_EVERY;
        }
        if !is_away && Instant::now() >= next_prune {
            let pruned = pool.run(async |client| prune_all(&client, keep_history).await).await;
            let pruned = succeeded(name, "prune", pruned, &mut is_away);
            next_prune = Instant::now() + if pruned { PRUNE_EVERY } else { PRUNE_AGAIN };
        }
        pause(tick, stop).await;
    }
}

async fn pause(span: Duration, stop: &CancellationToken) {
    let _ = stop.run_until_cancelled(tokio::time::sleep(span)).await;
}

/// Whether a part of the maintenance succeeded. One that failed is logged, and does not stop the others, unless the database is away:
/// then each of them would fail too, after its time limit.
fn succeeded(name: &str, part: &'static str, done: Result<(), Error>, is_away: &mut bool) -> bool {
    if let Err(error) = &done {
        tracing::warn!(%error, worker = name, part, "a part of the maintenance failed, will try again");
        *is_away = matches!(error, Error::Database(DatabaseError::Unreachable(_)));
    }
    done.is_ok()
}

/// How many rows of each table were missing and are there again.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RestoredRows {
    /// Of `used_priority`.
    pub priorities: i64,
    /// Of `sweep_tick`.
    pub ticks: i64,
    /// Of `alone_turn`.
    pub turns: i64,
    /// Of `outbox_shard`.
    pub shards: i64,
}

/// Restores the rows that otherwise only migrations insert, if a statement of a user deleted them. Also returns when the server started.
pub async fn restore_rows(client: &impl Sql) -> Result<(RestoredRows, SystemTime), Error> {
    let rows = query(client, include_str!("../../sql/engine/restore_rows.sql"), &[]).await?;
    let row = rows.first().ok_or_else(|| Error::Invalid("restore_rows.sql returned no row".into()))?;
    let restored = RestoredRows {
        priorities: row.get("priorities"),
        ticks: row.get("ticks"),
        turns: row.get("turns"),
        shards: row.get("shards"),
    };
    Ok((restored, row.get("server_started_at")))
}

/// Logs what was missing. The other nodes find nothing to restore, so one of them logs it.
async fn restore_missing(pool: &Pool, name: &str, passes: &mut Passes) -> Result<(), Error> {
    let (restored, server_started_at) = pool.run(async |client| restore_rows(&client).await).await?;
    passes.answered(server_started_at);
    if restored != RestoredRows::default() {
        tracing::warn!(
            worker = name,
            ?restored,
            "rows that the engine needs were deleted and are restored: exclude the schema `pitwheel` from what empties tables"
        );
    }
    Ok(())
}

/// Restores the holds of a page of jobs, if a pass over all of them is due.
async fn restore_lost_holds(pool: &Pool, passes: &mut Passes) -> Result<(), Error> {
    if let Some(above) = passes.next(Instant::now()) {
        let last = pool.run(async |client| restore_holds(&client, above).await).await?;
        passes.looked_up_to(last, Instant::now());
    }
    Ok(())
}

/// Restores the live jobs of recurring jobs that are gone, of a page of them.
async fn restore(pool: &Pool, looked_up_to: &mut i64) -> Result<(), Error> {
    *looked_up_to = pool.run(async |client| restore_lost_runs(&client, *looked_up_to).await).await?;
    Ok(())
}

/// Plans the next runs that no settle has planned.
async fn plan(pool: &Pool, planned_up_to: &mut i64) -> Result<(), Error> {
    *planned_up_to = pool.run(async |client| plan_runs(&client, *planned_up_to).await).await?.next;
    Ok(())
}

/// Lets pipelines go on whose steps have lost their jobs, of a page of them.
async fn repair(pool: &Pool, repaired_up_to: &mut i64) -> Result<(), Error> {
    *repaired_up_to = pool.run(async |client| repair_pipelines(&client, *repaired_up_to).await).await?;
    Ok(())
}

/// Like `prune`; what had to be left because it is locked is an error, so that it is logged, counted and tried again soon.
pub async fn prune_all(client: &impl Sql, keep: Duration) -> Result<(), Error> {
    prune(client, keep).await?;
    let sql = include_str!("../../sql/engine/history_left.sql");
    let rows = query(client, sql, &[(&keep.as_secs_f64(), Type::FLOAT8)]).await?;
    let days: i64 = rows.first().map_or(0, |row| row.get(0));
    if days == 0 {
        return Ok(());
    }
    let message = format!("the history is being read: days that cannot be dropped or created yet: {days}");
    Err(Error::Database(DatabaseError::Refused { message, code: LOCK_NOT_AVAILABLE.to_owned() }))
}

/// Drops the history and the audit log that are too old, and creates the history's partitions of the coming week. Returns
/// how many days of history were dropped.
pub(crate) async fn prune(client: &impl Sql, keep: Duration) -> Result<i32, Error> {
    let begun = Instant::now();
    let seconds = keep.as_secs_f64();
    let sql = include_str!("../../sql/engine/prune_history.sql");
    let rows = query(client, sql, &[(&seconds, Type::FLOAT8)]).await?;
    query(client, include_str!("../../sql/engine/prune_audit.sql"), &[]).await?;
    prune_default(client, seconds).await?;
    prune_lanes(client, seconds).await?;
    prune_pipelines(client, seconds).await?;
    metrics::maintained("prune", begun.elapsed());
    Ok(rows.first().map_or(0, |row| row.get(0)))
}

/// Creates the partitions of today and the coming week. Before the first settle: the partition of a day cannot be created any more when
/// the default partition has rows of that day.
pub async fn prepare_history(client: &impl Sql) -> Result<(), Error> {
    let sql = include_str!("../../sql/engine/prune_history.sql");
    query(client, sql, &[(&SPAN_MAX.as_secs_f64(), Type::FLOAT8)]).await?;
    Ok(())
}

/// Deletes the rows of days that had no partition.
async fn prune_default(client: &impl Sql, seconds: f64) -> Result<(), Error> {
    let mut above = Ctid::default();
    for _ in 0..PRUNE_PAGES_MAX {
        let params: Params = &[(&seconds, Type::FLOAT8), (&above, Type::TID), (&PRUNED_TOGETHER, Type::INT4)];
        let rows = query(client, include_str!("../../sql/engine/prune_default.sql"), params).await?;
        match rows.first().and_then(|row| row.get(0)) {
            Some(last) => above = last,
            None => break,
        }
    }
    Ok(())
}

/// Forgets the current jobs of lanes in which nothing has run since the history that is kept begins.
async fn prune_lanes(client: &impl Sql, seconds: f64) -> Result<(), Error> {
    let mut last = String::new();
    for _ in 0..PRUNE_PAGES_MAX {
        let sql = include_str!("../../sql/engine/prune_lanes.sql");
        let rows = query(client, sql, &[(&seconds, Type::FLOAT8), (&last, Type::TEXT)]).await?;
        match rows.first().and_then(|row| row.get("last")) {
            Some(lane) => last = lane,
            None => break,
        }
    }
    Ok(())
}

/// Deletes the pipelines that ended before the history that is kept begins.
async fn prune_pipelines(client: &impl Sql, seconds: f64) -> Result<(), Error> {
    for _ in 0..PRUNE_PAGES_MAX {
        let sql = include_str!("../../sql/engine/prune_pipelines.sql");
        let rows = query(client, sql, &[(&seconds, Type::FLOAT8)]).await?;
        if rows.first().is_none_or(|row| row.get::<_, i64>(0) == 0) {
            break;
        }
    }
    Ok(())
}
