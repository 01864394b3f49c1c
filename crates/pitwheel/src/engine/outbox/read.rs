//! Reading the next events of shards.

use std::sync::Arc;

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::engine::outbox::event::{Event, Place, headers};
use crate::error::Error;
use crate::postgres::{Params, Sql};

const READ_SHARDS: &str = include_str!("../../../sql/outbox/read_shards.sql");

/// Bytes of payloads per read, of all shards together. A shard returns one event at least, however large it is.
const BYTES_MAX: usize = 32 * 1024 * 1024;

/// What to read of a shard.
pub(super) struct Asked {
    pub(super) shard: i16,
    pub(super) lease: Arc<str>,
    pub(super) restart: i64,
    pub(super) bound: i64,
    pub(super) most: i64,
}

/// The next events of these shards, each shard's in the order of their ids. Shards that are not held any more return none,
/// and entities that are left out neither.
pub(super) async fn read(
    client: &impl Sql,
    asked: &[Asked],
    left_out: &[String],
) -> Result<Vec<Event>, Error> {
    let shards: Vec<i16> = asked.iter().map(|one| one.shard).collect();
    let leases: Vec<&str> = asked.iter().map(|one| &*one.lease).collect();
    let restarts: Vec<i64> = asked.iter().map(|one| one.restart).collect();
    let bounds: Vec<i64> = asked.iter().map(|one| one.bound).collect();
    let most: Vec<i64> = asked.iter().map(|one| one.most).collect();
    let bytes = (BYTES_MAX / asked.len().max(1)) as i64;
    let params: Params = &[
        (&shards, Type::INT2_ARRAY),
        (&leases, Type::TEXT_ARRAY),
        (&restarts, Type::INT8_ARRAY),
        (&bounds, Type::INT8_ARRAY),
        (&most, Type::INT8_ARRAY),
        (&bytes, Type::INT8),
        (&left_out, Type::TEXT_ARRAY),
    ];
    let rows = client.rows(READ_SHARDS, params).await?;
    let lease = |shard: i16| asked.iter().find(|one| one.shard == shard).map(|one| one.lease.clone());
    let event = |row| event(row, lease(row.get(0)).unwrap_or_default());
    let mut events = rows.iter().map(event).collect::<Result<Vec<Event>, Error>>()?;
    // The plan returns them so; the order is a promise, and sorting what is sorted costs little.
    events.sort_by_key(|event| (event.place.shard, event.id));
    Ok(events)
}

fn event(row: &Row, lease: Arc<str>) -> Result<Event, Error> {
    let (headers, unreadable) = headers(row, 8)?;
    Ok(Event {
        place: Place { shard: row.get(0), lease, ctid: row.get(2) },
        id: row.get(1),
        created_at: row.get(3),
        entity_key: row.get(4),
        topic: row.get(5),
        kind: row.get(6),
        payload: row.get(7),
        headers,
        unreadable,
    })
}
