//! Adding events to the outbox, in few statements, for any driver.

use tokio_postgres::types::Type;

use crate::error::Error;
use crate::job::limits::ENQUEUE_MAX;
use crate::job::new_event::NewEvent;
#[cfg(any(feature = "sqlx", feature = "tokio-postgres"))]
use crate::job::new_event::check_entity_key;
use crate::postgres::{Params, Sql};

/// The table to which they are added.
pub(crate) const TABLE: &str = "pitwheel.outbox";

pub(crate) const ADD_EVENTS: &str = include_str!("../../../sql/outbox/add_events.sql");
#[cfg(any(feature = "sqlx", feature = "tokio-postgres"))]
pub(crate) const LOCK_ENTITIES: &str = include_str!("../../../sql/outbox/lock_entities.sql");

/// Bytes of payloads per statement. One event may have more.
const BYTES_MAX: usize = 4 * 1024 * 1024;

/// Events as columns for `unnest`.
#[derive(Default)]
pub(crate) struct EventColumns<'a> {
    pub(crate) entity_keys: Vec<&'a str>,
    pub(crate) topics: Vec<&'a str>,
    pub(crate) kinds: Vec<&'a str>,
    pub(crate) payloads: Vec<Option<&'a [u8]>>,
    pub(crate) headers: Vec<Option<String>>,
}

/// Checks all events, and returns them in batches, one per statement.
pub(crate) fn batches(events: &[NewEvent]) -> Result<Vec<EventColumns<'_>>, Error> {
    events.iter().try_for_each(NewEvent::check)?;
    let (mut batches, mut bytes) = (Vec::new(), 0);
    let mut batch = EventColumns::default();
    for event in events {
        let size = event.payload().map_or(0, <[u8]>::len);
        let is_full = batch.kinds.len() == ENQUEUE_MAX || bytes + size > BYTES_MAX;
        if is_full && !batch.kinds.is_empty() {
            batches.push(std::mem::take(&mut batch));
            bytes = 0;
        }
        bytes += size;
        batch.entity_keys.push(&event.entity_key);
        batch.topics.push(&event.topic);
        batch.kinds.push(&event.kind);
        batch.payloads.push(event.payload());
        batch.headers.push(event.headers_json());
    }
    if !batch.kinds.is_empty() {
        batches.push(batch);
    }
    Ok(batches)
}

/// Entities per lock: each takes a lock until the commit, and the server's memory for locks is limited.
#[cfg(any(feature = "sqlx", feature = "tokio-postgres"))]
const LOCK_MAX: usize = 1000;

/// Checks the keys of entities to lock.
#[cfg(any(feature = "sqlx", feature = "tokio-postgres"))]
pub(crate) fn check_keys(keys: &[&str]) -> Result<(), Error> {
    if keys.len() > LOCK_MAX {
        return Err(Error::Invalid(format!(
            "{} entities at a time are too many: lock {LOCK_MAX}",
            keys.len()
        )));
    }
    keys.iter().try_for_each(|key| check_entity_key(key))
}

/// Sends one batch with the engine's own driver. Returns the ids, in the order given.
pub(crate) async fn send(client: &impl Sql, batch: &EventColumns<'_>) -> Result<Vec<i64>, Error> {
    let params: Params = &[
        (&batch.entity_keys, Type::TEXT_ARRAY),
        (&batch.topics, Type::TEXT_ARRAY),
        (&batch.kinds, Type::TEXT_ARRAY),
        (&batch.payloads, Type::BYTEA_ARRAY),
        (&batch.headers, Type::TEXT_ARRAY),
    ];
    let rows = client.rows(ADD_EVENTS, params).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}
