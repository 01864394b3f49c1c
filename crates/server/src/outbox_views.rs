//! The outbox as JSON, for the HTTP API and for the commands `pitwheel outbox`.
//!
//! The field names are stable.

use pitwheel::{EventTrace, OutboxStatus, ParkedEntity, RelaySummary, ShardSummary};
use serde::Serialize;
use utoipa::ToSchema;

use crate::schemas::{EventState, RelayStrategy};
use crate::views::time;

/// The outbox as a whole.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct OutboxInFull {
    /// The number of events that wait, counted up to 1,000 per shard.
    pub waiting: i64,
    /// Whether counting stopped before all events were counted.
    pub capped: bool,
    /// How long the oldest event has been waiting, in seconds; null: none waits.
    pub oldest_seconds: Option<f64>,
    /// The number of parked entities, counted up to 10,000.
    pub parked: i64,
    /// The relays that are alive.
    pub relays: Vec<RelayLine>,
    /// All shards.
    pub shards: Vec<ShardLine>,
}

/// A relay.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct RelayLine {
    /// Its name.
    pub name: String,
    /// The table that it reads.
    pub source: String,
    /// `shards`, `advisory` or `row-lock`.
    #[schema(value_type = RelayStrategy)]
    pub strategy: String,
    /// When it started.
    #[schema(format = DateTime)]
    pub started_at: String,
    /// When its lease expires unless it is renewed.
    #[schema(format = DateTime)]
    pub lease_until: String,
    /// How many shards, or entities, it holds.
    pub held: i64,
}

/// A shard.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct ShardLine {
    /// Its number.
    pub shard: i16,
    /// The name of the relay that holds it; null: none does.
    pub relay: Option<String>,
    /// Since when.
    #[schema(format = DateTime)]
    pub taken_at: Option<String>,
    /// The number of events that wait, counted up to 1,000.
    pub waiting: i64,
    /// How long the oldest of them has been waiting, in seconds.
    pub oldest_seconds: Option<f64>,
}

/// A parked entity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct ParkedLine {
    /// The table that its events are in.
    pub source: String,
    /// Its key.
    pub entity_key: String,
    /// Since when it is parked.
    #[schema(format = DateTime)]
    pub since: String,
    /// The event that was refused.
    pub event_id: i64,
    /// The topic of that event.
    pub topic: String,
    /// Why it was refused.
    pub reason: String,
    /// How many of its events were moved aside, counted up to 1,000.
    pub events: i64,
}

/// Where an event is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct EventLine {
    /// `waiting`, `parked` or `sent`.
    #[schema(value_type = EventState)]
    pub state: String,
    /// The entity that it is about.
    pub entity_key: String,
    /// Its topic.
    pub topic: String,
    /// What happened.
    #[serde(rename = "type")]
    pub kind: String,
    /// When it was written.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// When it was delivered.
    #[schema(format = DateTime)]
    pub sent_at: Option<String>,
    /// Its shard, if it was not delivered.
    pub shard: Option<i16>,
    /// The relay that holds the shard.
    pub relay: Option<String>,
    /// Why the entity is parked.
    pub reason: Option<String>,
}

impl From<OutboxStatus> for OutboxInFull {
    fn from(status: OutboxStatus) -> OutboxInFull {
        OutboxInFull {
            waiting: status.waiting,
            capped: status.capped,
            oldest_seconds: status.oldest_seconds,
            parked: status.parked,
            relays: status.relays.into_iter().map(RelayLine::from).collect(),
            shards: status.shards.into_iter().map(ShardLine::from).collect(),
        }
    }
}

impl From<RelaySummary> for RelayLine {
    fn from(relay: RelaySummary) -> RelayLine {
        RelayLine {
            name: relay.name,
            source: relay.source,
            strategy: relay.strategy,
            started_at: time(relay.started_at),
            lease_until: time(relay.lease_until),
            held: relay.held,
        }
    }
}

impl From<ShardSummary> for ShardLine {
    fn from(shard: ShardSummary) -> ShardLine {
        ShardLine {
            shard: shard.shard,
            relay: shard.relay,
            taken_at: shard.taken_at.map(time),
            waiting: shard.waiting,
            oldest_seconds: shard.oldest_seconds,
        }
    }
}

impl From<ParkedEntity> for ParkedLine {
    fn from(parked: ParkedEntity) -> ParkedLine {
        ParkedLine {
            source: parked.source,
            entity_key: parked.entity_key,
            since: time(parked.since),
            event_id: parked.event_id,
            topic: parked.topic,
            reason: parked.reason,
            events: parked.events,
        }
    }
}

impl From<EventTrace> for EventLine {
    fn from(event: EventTrace) -> EventLine {
        EventLine {
            state: event.state,
            entity_key: event.entity_key,
            topic: event.topic,
            kind: event.kind,
            created_at: time(event.created_at),
            sent_at: event.sent_at.map(time),
            shard: event.shard,
            relay: event.relay,
            reason: event.reason,
        }
    }
}
