//! Events of the outbox: adding, taking and comparing them.

use anyhow::Result;
use pitwheel::NewEvent;
use pitwheel::engine::outbox::{Event, Shards, Strategy};

use crate::test_db::TestDb;

impl TestDb {
    /// Adds an event for each of these entities. Returns their ids.
    pub async fn add_events(&self, keys: &[&str]) -> Result<Vec<i64>> {
        let events = keys.iter().map(|key| NewEvent::new(*key, "orders", "changed", "x"));
        Ok(self.pitwheel().outbox().add(events).await?)
    }
}

/// Takes what a relay can take, after a turn.
pub async fn take_events(relay: &mut Shards) -> Result<Vec<Event>> {
    relay.turn_soon();
    Ok(relay.take(1000).await?.events)
}

/// The ids of events, sorted.
pub fn event_ids(events: &[Event]) -> Vec<i64> {
    let mut ids: Vec<i64> = events.iter().map(|event| event.id).collect();
    ids.sort_unstable();
    ids
}
