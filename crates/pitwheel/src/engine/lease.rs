//! A worker's lease: one row for all its jobs, renewed by one small write.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::engine::claim_columns::{ClaimColumns, claim_of_row};
use crate::engine::enqueue::{millis, unsigned};
use crate::engine::hint::{self, log_unhinted};
use crate::engine::recurring::recurrences;
use crate::error::Error;
use crate::job::claim::Claim;
use crate::job::ending::Settlement;
use crate::job::recurrence::Recurrence;
use crate::postgres::{Ctid, Params, Sql, query};

pub(crate) const PROGRESS: &str = include_str!("../../sql/engine/progress.sql");

/// A worker's description of itself.
#[derive(Debug, Clone)]
pub struct Registration {
    /// A name for people; it need not be unique.
    pub name: String,
    /// How long it may go without a renewal.
    pub lease: Duration,
    /// `direct`, to Postgres, or `grpc`.
    pub transport: &'static str,
    /// The queues that it takes jobs from.
    pub queues: Vec<String>,
    /// The kinds that it handles.
    pub kinds: Vec<String>,
    /// How many jobs it runs at a time.
    pub slots: usize,
    /// The id of the token that it connected with.
    pub token: Option<i64>,
}

/// Registers a worker. Returns its id, which is the holder of what it claims.
pub async fn register(client: &impl Sql, worker: &Registration) -> Result<i64, Error> {
    let slots = i32::try_from(worker.slots).unwrap_or(i32::MAX);
    let params: Params = &[
        (&worker.name, Type::TEXT),
        (&millis(worker.lease), Type::INT8),
        (&worker.transport, Type::TEXT),
        (&worker.queues, Type::TEXT_ARRAY),
        (&worker.kinds, Type::TEXT_ARRAY),
        (&slots, Type::INT4),
        (&worker.token, Type::INT8),
    ];
    let row = query(client, include_str!("../../sql/engine/register.sql"), params).await?;
    Ok(row[0].get(0))
}

/// The result of a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewed {
    /// The lease was renewed.
    Alive,
    /// The lease was renewed; the worker is to end when its running jobs have ended.
    Drain,
    /// The worker was declared dead, and its jobs are given to others.
    Dead,
}

/// Renews a lease.
pub async fn renew(client: &impl Sql, worker: i64) -> Result<Renewed, Error> {
    let rows = query(client, include_str!("../../sql/engine/renew.sql"), &[(&worker, Type::INT8)]).await?;
    Ok(match rows.first().map(|row| row.get(0)) {
        None => Renewed::Dead,
        Some(true) => Renewed::Drain,
        Some(false) => Renewed::Alive,
    })
}

/// Signs a worker off. The stream of a remote one may still be open at another node, which a hint tells to end it.
pub async fn retire(client: &impl Sql, worker: i64) -> Result<(), Error> {
    let sql = include_str!("../../sql/engine/retire.sql");
    let retired = query(client, sql, &[(&worker, Type::INT8)]).await?;
    if retired.first().is_some_and(|row| row.get::<_, &str>(0) == "grpc") {
        log_unhinted(hint::command(client).await);
    }
    Ok(())
}

/// The running jobs of these workers whose cancel was requested, each with its worker.
pub async fn cancel_requests(client: &impl Sql, workers: &[i64]) -> Result<Vec<(i64, Claim)>, Error> {
    let params: Params = &[(&workers, Type::INT8_ARRAY)];
    let rows = query(client, include_str!("../../sql/engine/cancel_requests.sql"), params).await?;
    let claim = |row: &Row| Claim { id: row.get(1), fence: row.get(2), holder: row.get(0) };
    Ok(rows.iter().map(|row| (row.get(0), claim(row))).collect())
}

/// Writes progress. Returns the claims that still hold.
pub async fn progress(client: &impl Sql, reports: &[(Claim, f32, String)]) -> Result<Vec<Claim>, Error> {
    let claims = ClaimColumns::new(reports.iter().map(|(claim, ..)| *claim));
    let fractions: Vec<f32> = reports.iter().map(|(_, fraction, _)| *fraction).collect();
    let notes: Vec<&str> = reports.iter().map(|(.., note)| note.as_str()).collect();
    let params: Params = &[
        (&claims.ids, Type::INT8_ARRAY),
        (&claims.fences, Type::INT8_ARRAY),
        (&claims.holders, Type::INT8_ARRAY),
        (&fractions, Type::FLOAT4_ARRAY),
        (&notes, Type::TEXT_ARRAY),
    ];
    let rows = query(client, PROGRESS, params).await?;
    Ok(rows.iter().map(claim_of_row).collect())
}

/// Writes the last progress of attempts that end.
pub(crate) async fn write_last_progress(client: &impl Sql, batch: &[Settlement]) -> Result<(), Error> {
    let last = batch.iter().filter_map(|settlement| {
        let (fraction, note) = settlement.kept_progress()?;
        Some((settlement.claim, *fraction, note.clone()))
    });
    let mut last: Vec<(Claim, f32, String)> = last.collect();
    if !last.is_empty() {
        last.sort_unstable_by_key(|(claim, ..)| claim.id);
        progress(client, &last).await?;
    }
    Ok(())
}

/// The result of a heartbeat of many workers.
#[derive(Debug, Default)]
pub struct HeartbeatReply {
    /// The workers whose leases were renewed.
    pub alive: Vec<i64>,
    /// The workers that another transaction has locked, so that their leases were not renewed. The others were declared dead.
    pub locked: Vec<i64>,
    /// The workers that are to end when their running jobs have ended.
    pub draining: Vec<i64>,
}

/// Renews the leases of many workers in one statement.
pub async fn heartbeat(client: &impl Sql, workers: &[i64]) -> Result<HeartbeatReply, Error> {
    let sql = include_str!("../../sql/engine/heartbeat.sql");
    let mut beat = HeartbeatReply::default();
    for row in client.rows(sql, &[(&workers, Type::INT8_ARRAY)]).await? {
        let worker: i64 = row.get(0);
        match row.get::<_, Option<bool>>(1) {
            None => beat.locked.push(worker),
            Some(drain) => {
                beat.alive.push(worker);
                beat.draining.extend(drain.then_some(worker));
            }
        }
    }
    Ok(beat)
}

/// Those of these workers that are alive, and whether they get no more jobs, because they are quiet or draining.
pub async fn alive_workers(client: &impl Sql, workers: &[i64]) -> Result<HashMap<i64, bool>, Error> {
    let rows = client
        .rows(include_str!("../../sql/engine/alive_workers.sql"), &[(&workers, Type::INT8_ARRAY)])
        .await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

/// A hold: what one claim took for one worker, as far as it is still held.
#[derive(Debug)]
pub struct Hold {
    /// Its id.
    pub id: i64,
    /// The id of the worker.
    pub worker: i64,
    /// The claims that still hold.
    pub claims: Vec<Claim>,
}

/// The holds of these workers.
pub async fn held(client: &impl Sql, workers: &[i64]) -> Result<Vec<Hold>, Error> {
    let mut holds: HashMap<i64, Hold> = HashMap::new();
    for row in client.rows(include_str!("../../sql/engine/held.sql"), &[(&workers, Type::INT8_ARRAY)]).await?
    {
        let (id, worker): (i64, i64) = (row.get(0), row.get(1));
        let hold = holds.entry(id).or_insert_with(|| Hold { id, worker, claims: Vec::new() });
        if let Some(id) = row.get(2) {
            hold.claims.push(Claim { id, fence: row.get(3), holder: worker });
        }
    }
    Ok(holds.into_values().collect())
}

/// The attempt of a claim.
#[derive(Debug, Clone)]
pub struct AttemptInfo {
    /// The number of the attempt, counted from 1.
    pub number: u32,
    /// The maximum number of attempts.
    pub max: u32,
    /// Whether a cancel was requested.
    pub cancelled: bool,
    /// The name of the worker that runs it.
    pub worker: String,
    /// The recurring job that it is a run of.
    pub recurrence: Option<Box<Recurrence>>,
    /// Where the row of the job was.
    pub ctid: Ctid,
    /// The queue of the job.
    pub queue: String,
    /// The kind of the job.
    pub kind: String,
    /// The time since its claim.
    pub age: Duration,
}

/// The attempts of these claims, by job id; a lost claim has no entry.
pub async fn attempts(client: &impl Sql, claims: &[Claim]) -> Result<HashMap<i64, AttemptInfo>, Error> {
    let claims = ClaimColumns::new(claims.iter().copied());
    let params: Params = &[
        (&claims.ids, Type::INT8_ARRAY),
        (&claims.fences, Type::INT8_ARRAY),
        (&claims.holders, Type::INT8_ARRAY),
    ];
    let rows = client.rows(include_str!("../../sql/engine/attempts.sql"), params).await?;
    let runs: Vec<i64> = rows.iter().filter_map(|row| row.get(5)).collect();
    let recurrences = recurrences(client, &runs).await?;
    let read = rows.iter().map(|row| {
        let run: Option<i64> = row.get(5);
        let attempt = AttemptInfo {
            number: unsigned(row.get(1)),
            max: unsigned(row.get(2)),
            cancelled: row.get(3),
            worker: row.get(4),
            recurrence: run.and_then(|id| recurrences.get(&id)).map(|read| started(read, row.get(6))),
            ctid: row.get(7),
            queue: row.get(8),
            kind: row.get(9),
            age: Duration::try_from_secs_f64(row.get(10)).unwrap_or_default(),
        };
        (row.get(0), attempt)
    });
    Ok(read.collect())
}

/// The recurring job of a run, as it would have been read when the run was claimed.
fn started(read: &Recurrence, claimed_at: Option<SystemTime>) -> Box<Recurrence> {
    let clock = read.clock.at_time(claimed_at.unwrap_or(read.clock.read));
    Box::new(Recurrence { clock, ..read.clone() })
}

/// Which of these workers connected with this token.
pub async fn workers_of_token(client: &impl Sql, token: i64, workers: &[i64]) -> Result<Vec<i64>, Error> {
    let params: Params = &[(&workers, Type::INT8_ARRAY), (&token, Type::INT8)];
    let rows = client.rows(include_str!("../../sql/engine/workers_of_token.sql"), params).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Which of these claims are held by workers that connected with this token.
pub async fn claims_of_token(client: &impl Sql, token: i64, claims: &[Claim]) -> Result<Vec<Claim>, Error> {
    let claims = ClaimColumns::new(claims.iter().copied());
    let params: Params = &[
        (&claims.ids, Type::INT8_ARRAY),
        (&claims.fences, Type::INT8_ARRAY),
        (&claims.holders, Type::INT8_ARRAY),
        (&token, Type::INT8),
    ];
    let rows = client.rows(include_str!("../../sql/engine/claims_of_token.sql"), params).await?;
    Ok(rows.iter().map(claim_of_row).collect())
}
