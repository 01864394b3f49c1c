//! Claiming due jobs: at most the slots given, each job by one holder, in the order of priority and time.

use std::collections::HashMap;
use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::engine::claimed_rows::{CLAIM_COLUMNS, read_claimed};
use crate::engine::cursor::{Bounds, LevelLook, Look, LookedBack, Position, Snapshot};
use crate::engine::enqueue::millis;
use crate::engine::settle::{DROP_HOLDS, settle};
use crate::engine::settle_columns::SettleResult;
use crate::error::{DatabaseError, Error};
use crate::job::claim::{Claim, ClaimRefusal, Claimed, QueueSlots};
use crate::job::ending::Settlement;
use crate::postgres::{Params, Sql, query};

const CLAIM: &str = include_str!("../../sql/engine/claim.sql");
const CLAIM_FOR_WORKERS: &str = include_str!("../../sql/engine/claim_for_workers.sql");
const CLAIM_ALONE: &str = include_str!("../../sql/engine/claim_alone.sql");
const CLAIM_BY_ID: &str = include_str!("../../sql/engine/claim_by_id.sql");
const CLAIM_REFUSAL: &str = include_str!("../../sql/engine/claim_refusal.sql");
const LOOK_BACK: &str = include_str!("../../sql/engine/look_back.sql");
const FREE_SUSPECT: &str = include_str!("../../sql/engine/free_suspect.sql");
const FIRST_FREE: &str = include_str!("../../sql/engine/first_free.sql");
const UNKNOWN_HOLDS: &str = include_str!("../../sql/engine/unknown_holds.sql");

/// Claims up to the given slots for one worker, reading from the cursor's bounds. Pass the result to [`Cursor::after`](crate::engine::Cursor::after).
///
/// Not safe to cancel: the jobs of a claim whose result is not read stay held until [`release_unknown`] or a sweep finds them.
pub async fn claim(
    client: &impl Sql,
    worker: i64,
    slots_by_queue: &[QueueSlots],
    kinds: &[String],
    bounds: &Bounds,
) -> Result<Vec<Claimed>, Error> {
    let queues: Vec<&str> = slots_by_queue.iter().map(|ask| ask.queue.as_str()).collect();
    let first_levels: Vec<i32> =
        slots_by_queue.iter().map(|slots| bounds.first_level(&slots.queue)).collect();
    let slots: Vec<i32> =
        slots_by_queue.iter().map(|ask| i32::try_from(ask.slots).unwrap_or(i32::MAX)).collect();
    let rows = client
        .rows(
            CLAIM,
            &[
                (&worker, Type::INT8),
                (&queues, Type::TEXT_ARRAY),
                (&slots, Type::INT4_ARRAY),
                (&first_levels, Type::INT4_ARRAY),
                (&bounds.run_ats, Type::TIMESTAMPTZ_ARRAY),
                (&bounds.ids, Type::INT8_ARRAY),
                (&kinds, Type::TEXT_ARRAY),
            ],
        )
        .await?;
    read_claimed(client, &rows, |row| (worker, row.get(CLAIM_COLUMNS))).await
}

/// The result of a claim.
#[derive(Debug)]
pub struct ClaimedJobs {
    /// The jobs.
    pub jobs: Vec<Claimed>,
    /// How many of the slots could have been filled: those of workers that were declared dead or are quiet could not. The claims of the
    /// engine count as many as were given if there are no jobs.
    pub alive_slots: usize,
}

/// Claims for many workers: the n-th due job, by id, goes to the n-th entry of `slots_by_worker`, at most 500 of them. The holder is in
/// each job. Pass the result to [`Cursor::after`](crate::engine::Cursor::after).
///
/// Not safe to cancel, like [`claim`].
pub async fn claim_for_workers(
    client: &impl Sql,
    slots_by_worker: &[i64],
    queues: &[String],
    kinds: &[String],
    bounds: &Bounds,
) -> Result<ClaimedJobs, Error> {
    let mut workers = slots_by_worker.to_vec();
    workers.sort_unstable();
    workers.dedup();
    let first_levels: Vec<i32> = queues.iter().map(|queue| bounds.first_level(queue)).collect();
    let params: Params = &[
        (&slots_by_worker, Type::INT8_ARRAY),
        (&workers, Type::INT8_ARRAY),
        (&queues, Type::TEXT_ARRAY),
        (&first_levels, Type::INT4_ARRAY),
        (&bounds.run_ats, Type::TIMESTAMPTZ_ARRAY),
        (&bounds.ids, Type::INT8_ARRAY),
        (&kinds, Type::TEXT_ARRAY),
    ];
    let rows = client.rows(CLAIM_FOR_WORKERS, params).await?;
    let (mut holds, mut alive_slots) = (HashMap::new(), slots_by_worker.len());
    for row in &rows {
        let made: (Option<Vec<i64>>, Option<Vec<i64>>) =
            (row.get(CLAIM_COLUMNS + 1), row.get(CLAIM_COLUMNS + 2));
        if let (Some(workers), Some(ids)) = made {
            holds.extend(workers.into_iter().zip(ids));
            let count: i64 = row.get(CLAIM_COLUMNS + 3);
            alive_slots = usize::try_from(count).unwrap_or(alive_slots);
        }
    }
    // The job with the lowest id was changed while the statement ran, and is not claimed. Without their holds the others would be
    // taken for unknown while they run; after this error they are released at once.
    if holds.is_empty() && !rows.is_empty() {
        let message = "a job was changed while it was claimed".to_owned();
        return Err(Error::Database(DatabaseError::Refused { message, code: "40001".to_owned() }));
    }
    let held = |row: &Row| {
        let worker: i64 = row.get(CLAIM_COLUMNS);
        (worker, holds.get(&worker).copied().unwrap_or_default())
    };
    Ok(ClaimedJobs { jobs: read_claimed(client, &rows, held).await?, alive_slots })
}

/// Claims one suspect: a job that was running at two crashes. For a worker that runs nothing else.
pub async fn claim_alone(
    client: &impl Sql,
    worker: i64,
    queues: &[String],
    kinds: &[String],
) -> Result<Option<Claimed>, Error> {
    let params: Params = &[(&worker, Type::INT8), (&queues, Type::TEXT_ARRAY), (&kinds, Type::TEXT_ARRAY)];
    let rows = query(client, CLAIM_ALONE, params).await?;
    Ok(read_claimed(client, &rows, |row| (worker, row.get(CLAIM_COLUMNS))).await?.pop())
}

/// Claims this job for a worker, also before its time. Of several callers one gets it. `actor` is the person who asked for it, for the
/// audit log; `None`: the worker itself.
///
/// Not safe to cancel, like [`claim`].
pub async fn claim_by_id(
    client: &impl Sql,
    worker: i64,
    id: i64,
    kinds: &[String],
    actor: Option<&str>,
) -> Result<Result<Claimed, ClaimRefusal>, Error> {
    let params: Params =
        &[(&worker, Type::INT8), (&id, Type::INT8), (&kinds, Type::TEXT_ARRAY), (&actor, Type::TEXT)];
    let rows = query(client, CLAIM_BY_ID, params).await?;
    if let Some(job) = read_claimed(client, &rows, |row| (worker, row.get(CLAIM_COLUMNS))).await?.pop() {
        return Ok(Ok(job));
    }
    let params: Params = &[(&id, Type::INT8), (&kinds, Type::TEXT_ARRAY)];
    let rows = query(client, CLAIM_REFUSAL, params).await?;
    let reason = rows.first().ok_or(Error::NotFound(id, "no job had this id, or its history was pruned"))?;
    Ok(Err(match reason.get::<_, &str>(0) {
        "lane_busy" => ClaimRefusal::LaneBusy,
        "out_of_attempts" => ClaimRefusal::OutOfAttempts,
        "paused" => ClaimRefusal::Paused,
        "other_kind" => ClaimRefusal::NoHandler,
        "finished" => ClaimRefusal::Finished,
        // Also if it changed since, or the worker was declared dead or is quiet.
        _ => ClaimRefusal::Taken,
    }))
}

/// Releases jobs that these workers hold without knowing it. A claim that failed here may have been committed at the server; its
/// jobs would stay held by a worker that is alive and does not run them. Returns how many jobs were released.
///
/// `is_known`: the claim is in progress. An old hold may name it too: if a job was put back and claimed again by the same worker before
/// its first hold was deleted, that one stays.
pub async fn release_unknown(
    client: &impl Sql,
    workers: &[i64],
    known_holds: &[i64],
    is_known: impl Fn(&Claim) -> bool,
) -> Result<usize, Error> {
    let params: Params = &[(&workers, Type::INT8_ARRAY), (&known_holds, Type::INT8_ARRAY)];
    let rows = client.rows(UNKNOWN_HOLDS, params).await?;
    let mut holds: Vec<i64> = rows.iter().map(|row| row.get("hold")).collect();
    holds.sort_unstable();
    holds.dedup();
    if holds.is_empty() {
        return Ok(0);
    }
    let held = rows.iter().filter_map(|row| {
        let id: Option<i64> = row.get("id");
        id.map(|id| Claim { id, fence: row.get("fence"), holder: row.get("holder") })
    });
    let batch: Vec<Settlement> = held.filter(|claim| !is_known(claim)).map(Settlement::release).collect();
    let results = settle(client, &batch, &[]).await?;
    // Only those that are empty now: a job that is locked was not released, and is found again by its hold.
    client.rows(DROP_HOLDS, &[(&holds, Type::INT8_ARRAY)]).await?;
    Ok(results.iter().filter(|result| **result == SettleResult::Written).count())
}

/// Whether this worker may stop claiming for so long, to run a suspect alone. False: another worker does.
pub(crate) async fn take_turn(client: &impl Sql, worker: i64, wait: Duration) -> Result<bool, Error> {
    let params: Params = &[(&worker, Type::INT8), (&millis(wait), Type::INT8)];
    Ok(!query(client, include_str!("../../sql/engine/take_turn.sql"), params).await?.is_empty())
}

/// Looks for due jobs below the bounds, where claims no longer read. Pass the result to [`Cursor::looked_back`](crate::engine::Cursor::looked_back).
pub async fn look_back(client: &impl Sql, kinds: &[String], look: &Look) -> Result<LookedBack, Error> {
    let Look { from: floors, to: bounds } = look;
    let rows = query(
        client,
        LOOK_BACK,
        &[
            (&bounds.order.queues, Type::TEXT_ARRAY),
            (&bounds.order.priorities, Type::INT2_ARRAY),
            (&floors.run_ats, Type::TIMESTAMPTZ_ARRAY),
            (&floors.ids, Type::INT8_ARRAY),
            (&bounds.run_ats, Type::TIMESTAMPTZ_ARRAY),
            (&bounds.ids, Type::INT8_ARRAY),
            (&kinds, Type::TEXT_ARRAY),
        ],
    )
    .await?;
    let first = rows.first().ok_or_else(|| Error::Invalid("a look back needs a queue".into()))?;
    let levels = rows.iter().map(|row| match (row.get("is_read"), position(row)) {
        (false, _) => LevelLook::NotRead,
        (true, None) => LevelLook::Empty,
        (true, Some(first)) => LevelLook::Behind { first, free: None },
    });
    let mut levels: Vec<LevelLook> = levels.collect();
    find_free(client, kinds, bounds, &mut levels).await?;
    let mut suspects: bool = first.get("suspects");
    if suspects {
        let queues: Vec<&String> = bounds.order.first.keys().collect();
        let params: Params = &[(&queues, Type::TEXT_ARRAY), (&kinds, Type::TEXT_ARRAY)];
        suspects = !query(client, FREE_SUSPECT, params).await?.is_empty();
    }
    Ok(LookedBack {
        snapshot: Snapshot {
            seen_at: first.get("seen_at"),
            oldest_xid: first.get("oldest_xid"),
            own_xid: first.get("own_xid"),
            server_started_at: first.get("server_started_at"),
        },
        levels,
        suspects,
    })
}

/// Finds the first job that is not locked in each level where one waits.
async fn find_free(
    client: &impl Sql,
    kinds: &[String],
    bounds: &Bounds,
    levels: &mut [LevelLook],
) -> Result<(), Error> {
    let behind = levels.iter().enumerate().filter_map(|(at, look)| match look {
        LevelLook::Behind { first, .. } => Some((at, *first)),
        LevelLook::NotRead | LevelLook::Empty => None,
    });
    let (places, from): (Vec<usize>, Vec<Position>) = behind.unzip();
    if places.is_empty() {
        return Ok(());
    }
    let queues: Vec<&str> = places.iter().map(|&at| &*bounds.order.queues[at]).collect();
    let priorities: Vec<i16> = places.iter().map(|&at| bounds.order.priorities[at]).collect();
    let (from_times, from_ids): (Vec<_>, Vec<_>) = from.iter().map(|from| (from.run_at, from.id)).unzip();
    let (to_times, to_ids): (Vec<_>, Vec<_>) =
        places.iter().map(|&at| (bounds.run_ats[at], bounds.ids[at])).unzip();
    let params: Params = &[
        (&queues, Type::TEXT_ARRAY),
        (&priorities, Type::INT2_ARRAY),
        (&from_times, Type::TIMESTAMPTZ_ARRAY),
        (&from_ids, Type::INT8_ARRAY),
        (&to_times, Type::TIMESTAMPTZ_ARRAY),
        (&to_ids, Type::INT8_ARRAY),
        (&kinds, Type::TEXT_ARRAY),
    ];
    let rows = query(client, FIRST_FREE, params).await?;
    let mut rows = rows.iter();
    for look in levels {
        if let LevelLook::Behind { free, .. } = look {
            *free = rows.next().and_then(position);
        }
    }
    Ok(())
}

fn position(row: &Row) -> Option<Position> {
    Some(Position { run_at: row.get::<_, Option<_>>("run_at")?, id: row.get("id") })
}
