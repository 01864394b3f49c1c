//! What people see of the outbox: relays, shards, parked entities, and where an event is.

use std::time::SystemTime;

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::error::Error;
use crate::operate::page::page;
use crate::postgres::{Params, Sql, query};

/// Events that are counted per shard: beyond it, an exact number is not worth its cost.
const COUNT_MAX: i64 = 1000;
/// Parked entities that are counted.
const PARKED_MAX: i64 = 10_000;

/// A relay that is alive.
#[derive(Debug, Clone, PartialEq)]
pub struct RelaySummary {
    /// Its name.
    pub name: String,
    /// The table that it reads.
    pub source: String,
    /// `shards`, `advisory` or `row-lock`.
    pub strategy: String,
    /// When it started.
    pub started_at: SystemTime,
    /// When its lease expires unless it is renewed.
    pub lease_until: SystemTime,
    /// How many shards, or entities, it holds.
    pub held: i64,
}

/// A shard, who holds it, and what waits in it.
#[derive(Debug, Clone, PartialEq)]
pub struct ShardSummary {
    /// Its number.
    pub shard: i16,
    /// The name of the relay that holds it. `None`: none does.
    pub relay: Option<String>,
    /// When that relay took it. `None`: no relay holds it.
    pub taken_at: Option<SystemTime>,
    /// The number of events that wait, counted up to 1,000.
    pub waiting: i64,
    /// How long the oldest of the counted events has been waiting, in seconds.
    pub oldest_seconds: Option<f64>,
}

/// The outbox as a whole.
#[derive(Debug, Clone, PartialEq)]
pub struct OutboxStatus {
    /// The number of events that wait, counted up to 1,000 per shard.
    pub waiting: i64,
    /// Whether counting stopped before all events were counted.
    pub capped: bool,
    /// How long the oldest event has been waiting, in seconds. `None`: none waits.
    pub oldest_seconds: Option<f64>,
    /// The number of parked entities, counted up to 10,000.
    pub parked: i64,
    /// All shards.
    pub shards: Vec<ShardSummary>,
    /// The relays that are alive.
    pub relays: Vec<RelaySummary>,
}

/// A parked entity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParkedEntity {
    /// The table that its events are in.
    pub source: String,
    /// Its key.
    pub entity_key: String,
    /// Since when it is parked.
    pub since: SystemTime,
    /// The event that was refused.
    pub event_id: i64,
    /// The topic of that event.
    pub topic: String,
    /// Why it was refused.
    pub reason: String,
    /// How many of its events were moved aside, counted up to 1,000. Those of other tables stay where they are.
    pub events: i64,
}

/// Where an event is.
#[derive(Debug, Clone, PartialEq)]
pub struct EventTrace {
    /// `waiting`, `parked` or `sent`.
    pub state: String,
    /// The entity that it is about.
    pub entity_key: String,
    /// Its topic.
    pub topic: String,
    /// What happened.
    pub kind: String,
    /// When it was written.
    pub created_at: SystemTime,
    /// When it was delivered.
    pub sent_at: Option<SystemTime>,
    /// Its shard, if it was not delivered.
    pub shard: Option<i16>,
    /// The relay that holds the shard.
    pub relay: Option<String>,
    /// Why the entity is parked.
    pub reason: Option<String>,
}

async fn relays(client: &impl Sql) -> Result<Vec<RelaySummary>, Error> {
    let rows = query(client, include_str!("../../sql/operate/outbox_relays.sql"), &[]).await?;
    let relay = |row: &Row| RelaySummary {
        name: row.get("name"),
        source: row.get("source"),
        strategy: row.get("strategy"),
        started_at: row.get("started_at"),
        lease_until: row.get("lease_until"),
        held: row.get("held"),
    };
    Ok(rows.iter().map(relay).collect())
}

async fn shards(client: &impl Sql) -> Result<Vec<ShardSummary>, Error> {
    let sql = include_str!("../../sql/operate/outbox_shards.sql");
    let rows = query(client, sql, &[(&COUNT_MAX, Type::INT8)]).await?;
    let shard = |row: &Row| ShardSummary {
        shard: row.get("shard"),
        relay: row.get("relay"),
        taken_at: row.get("taken_at"),
        waiting: row.get("events"),
        oldest_seconds: row.get("oldest_seconds"),
    };
    Ok(rows.iter().map(shard).collect())
}

pub(crate) async fn status(client: &impl Sql) -> Result<OutboxStatus, Error> {
    let shards = shards(client).await?;
    let sql = include_str!("../../sql/operate/outbox_parked_count.sql");
    let parked = query(client, sql, &[(&PARKED_MAX, Type::INT8)]).await?;
    Ok(OutboxStatus {
        waiting: shards.iter().map(|shard| shard.waiting).sum(),
        capped: shards.iter().any(|shard| shard.waiting >= COUNT_MAX),
        oldest_seconds: shards.iter().filter_map(|shard| shard.oldest_seconds).reduce(f64::max),
        parked: parked.first().map_or(0, |row| row.get(0)),
        shards,
        relays: relays(client).await?,
    })
}

pub(crate) async fn parked(
    client: &impl Sql,
    after: Option<(&str, &str)>,
    limit: usize,
) -> Result<Vec<ParkedEntity>, Error> {
    let (_, limit) = page(None, limit)?;
    let (source, key) = after.unwrap_or_default();
    let params: Params = &[(&source, Type::TEXT), (&key, Type::TEXT), (&limit, Type::INT8)];
    let rows = query(client, include_str!("../../sql/operate/outbox_parked.sql"), params).await?;
    let entity = |row: &Row| ParkedEntity {
        source: row.get("source"),
        entity_key: row.get("entity_key"),
        since: row.get("since"),
        event_id: row.get("event_id"),
        topic: row.get("topic"),
        reason: row.get("reason"),
        events: row.get("events"),
    };
    Ok(rows.iter().map(entity).collect())
}

pub(crate) async fn trace(client: &impl Sql, id: i64) -> Result<Vec<EventTrace>, Error> {
    let rows = query(client, include_str!("../../sql/operate/trace_event.sql"), &[(&id, Type::INT8)]).await?;
    let event = |row: &Row| EventTrace {
        state: row.get("state"),
        entity_key: row.get("entity_key"),
        topic: row.get("topic"),
        kind: row.get("type"),
        created_at: row.get("created_at"),
        sent_at: row.get("sent_at"),
        shard: row.get("shard"),
        relay: row.get("relay"),
        reason: row.get("reason"),
    };
    Ok(rows.iter().map(event).collect())
}

/// The largest id of the delivered events that are kept.
pub(crate) async fn last_sent_id(client: &impl Sql) -> Result<i64, Error> {
    let rows = query(client, include_str!("../../sql/operate/last_sent_id.sql"), &[]).await?;
    Ok(rows.first().map_or(0, |row| row.get(0)))
}
