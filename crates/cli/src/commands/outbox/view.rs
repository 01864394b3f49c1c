//! The outbox in a terminal.

use std::time::{Duration, SystemTime};

use pitwheel::{EventTrace, Outbox, OutboxStatus, ParkedEntity, RelaySummary, ShardSummary};

use crate::output::table::{Column, render};
use crate::time::relative;

/// How long ago something was, from seconds.
fn ago(seconds: Option<f64>, now: SystemTime) -> String {
    seconds.map_or_else(String::new, |seconds| {
        relative(now - Duration::from_secs_f64(seconds.clamp(0.0, 1e9)), now)
    })
}

pub(super) fn status(status: &OutboxStatus, now: SystemTime) -> String {
    let more = if status.capped { " or more" } else { "" };
    let oldest = match status.oldest_seconds {
        Some(_) => format!(", the oldest since {}", ago(status.oldest_seconds, now)),
        None => String::new(),
    };
    let mut text = format!("waiting  {}{more} events{oldest}\n", status.waiting);
    text.push_str(&format!("parked   {} entities\n", status.parked));
    if !status.relays.is_empty() {
        text.push('\n');
        text.push_str(&relays(&status.relays, now));
    }
    text
}

fn relays(relays: &[RelaySummary], now: SystemTime) -> String {
    render(vec![
        Column::new("RELAY", relays, |relay| relay.name.clone()).cut(),
        Column::new("STRATEGY", relays, |relay| relay.strategy.clone()),
        Column::new("SOURCE", relays, |relay| relay.source.clone()).cut(),
        Column::new("HOLDS", relays, |relay| relay.held.to_string()).numeric(),
        Column::new("STARTED", relays, |relay| relative(relay.started_at, now)),
        Column::new("LEASE ENDS", relays, |relay| relative(relay.lease_until, now)),
    ])
}

pub(super) fn shards(shards: &[ShardSummary], now: SystemTime) -> String {
    render(vec![
        Column::new("SHARD", shards, |shard| shard.shard.to_string()).numeric(),
        Column::new("RELAY", shards, |shard| shard.relay.clone().unwrap_or_default()).cut(),
        Column::new("SINCE", shards, |shard| {
            shard.taken_at.map_or_else(String::new, |taken| relative(taken, now))
        }),
        Column::new("WAITING", shards, |shard| shard.waiting.to_string()).numeric(),
        Column::new("OLDEST", shards, |shard| ago(shard.oldest_seconds, now)),
    ])
}

/// A table of the user's own; the one of Pitwheel needs no name.
fn table(source: &str) -> String {
    if source == Outbox::TABLE { String::new() } else { source.to_owned() }
}

pub(super) fn parked(parked: &[ParkedEntity], now: SystemTime) -> String {
    render(vec![
        Column::new("ENTITY", parked, |entity| entity.entity_key.clone()).cut(),
        Column::new("SINCE", parked, |entity| relative(entity.since, now)),
        Column::new("EVENTS", parked, |entity| entity.events.to_string()).numeric(),
        Column::new("REFUSED", parked, |entity| entity.event_id.to_string()).numeric(),
        Column::new("TOPIC", parked, |entity| entity.topic.clone()).cut(),
        Column::new("TABLE", parked, |entity| table(&entity.source)).cut().optional(),
        Column::new("REASON", parked, |entity| entity.reason.clone()).cut(),
    ])
}

pub(super) fn trace(found: &[EventTrace], now: SystemTime) -> String {
    render(vec![
        Column::new("STATE", found, |event| event.state.clone()),
        Column::new("ENTITY", found, |event| event.entity_key.clone()).cut(),
        Column::new("TOPIC", found, |event| event.topic.clone()).cut(),
        Column::new("TYPE", found, |event| event.kind.clone()).cut(),
        Column::new("WRITTEN", found, |event| relative(event.created_at, now)),
        Column::new("SENT", found, |event| {
            event.sent_at.map_or_else(String::new, |sent| relative(sent, now))
        })
        .optional(),
        Column::new("RELAY", found, |event| event.relay.clone().unwrap_or_default()).cut().optional(),
        Column::new("REASON", found, |event| event.reason.clone().unwrap_or_default()).cut().optional(),
    ])
}
