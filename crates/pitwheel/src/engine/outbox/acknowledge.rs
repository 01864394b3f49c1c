//! Acknowledging delivered events, and moving those of parked entities.

use std::collections::{BTreeMap, HashSet};

use tokio_postgres::types::Type;

use crate::engine::outbox::event::Event;
use crate::error::Error;
use crate::postgres::{Ctid, Params, Sql, query};

const ACKNOWLEDGE: &str = include_str!("../../../sql/outbox/acknowledge.sql");
const ACKNOWLEDGE_KEEP: &str = include_str!("../../../sql/outbox/acknowledge_keep.sql");

/// Deletes delivered events, or moves them to `outbox_sent` (`keep`). Returns the shards that were still held; events of others were left
/// as they are.
pub(super) async fn acknowledge(
    client: &impl Sql,
    sent: &[Event],
    keep: bool,
) -> Result<HashSet<i16>, Error> {
    let rows: Vec<(Ctid, i16, i64)> =
        sent.iter().map(|event| (event.place.ctid, event.place.shard, event.id)).collect();
    let (held, deleted) = delete(client, sent, &rows, keep).await?;
    let expected = sent.iter().filter(|event| held.contains(&event.place.shard)).count();
    if deleted < expected {
        // Rows have moved, or an earlier answer was lost and they are gone already.
        let moved = find(client, &rows).await?;
        delete(client, sent, &moved, keep).await?;
    }
    Ok(held)
}

async fn delete(
    client: &impl Sql,
    sent: &[Event],
    rows: &[(Ctid, i16, i64)],
    keep: bool,
) -> Result<(HashSet<i16>, usize), Error> {
    // One lease per shard: a shard that was lost and taken again has another one, and its earlier events are lost with the first.
    let leases: BTreeMap<i16, &str> =
        sent.iter().rev().map(|event| (event.place.shard, &*event.place.lease)).collect();
    let (shards, leases): (Vec<i16>, Vec<&str>) = leases.into_iter().unzip();
    let ctids: Vec<Ctid> = rows.iter().map(|row| row.0).collect();
    let shard_of_each: Vec<i16> = rows.iter().map(|row| row.1).collect();
    let ids: Vec<i64> = rows.iter().map(|row| row.2).collect();
    let params: Params = &[
        (&shards, Type::INT2_ARRAY),
        (&leases, Type::TEXT_ARRAY),
        (&ctids, Type::TID_ARRAY),
        (&shard_of_each, Type::INT2_ARRAY),
        (&ids, Type::INT8_ARRAY),
    ];
    let rows = client.rows(if keep { ACKNOWLEDGE_KEEP } else { ACKNOWLEDGE }, params).await?;
    let row = rows.first().ok_or_else(|| Error::Invalid("an acknowledgement returned no row".into()))?;
    let held: Vec<i16> = row.get(0);
    Ok((held.into_iter().collect(), usize::try_from(row.get::<_, i64>(1)).unwrap_or(0)))
}

async fn find(client: &impl Sql, rows: &[(Ctid, i16, i64)]) -> Result<Vec<(Ctid, i16, i64)>, Error> {
    let shards: Vec<i16> = rows.iter().map(|row| row.1).collect();
    let ids: Vec<i64> = rows.iter().map(|row| row.2).collect();
    let params: Params = &[(&shards, Type::INT2_ARRAY), (&ids, Type::INT8_ARRAY)];
    let rows = query(client, include_str!("../../../sql/outbox/find_events.sql"), params).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect())
}

/// Of delivered events, the ids of those whose rows another transaction has locked.
pub(super) async fn locked(client: &impl Sql, sent: &[Event]) -> Result<HashSet<i64>, Error> {
    let shards: Vec<i16> = sent.iter().map(|event| event.place.shard).collect();
    let ids: Vec<i64> = sent.iter().map(|event| event.id).collect();
    let params: Params = &[(&shards, Type::INT2_ARRAY), (&ids, Type::INT8_ARRAY)];
    let rows = query(client, include_str!("../../../sql/outbox/locked_events.sql"), params).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// The entity to park: its key, the event that was refused, and why.
pub(super) struct Parking<'a> {
    pub(super) event: &'a Event,
    pub(super) reason: &'a str,
}

/// Moves events of a shard to those of parked entities; with a parking, parks that entity first. False: the shard was lost, or events were put
/// back; nothing was changed.
pub(super) async fn park(
    client: &impl Sql,
    (shard, lease, restart): (i16, &str, i64),
    parking: Option<Parking<'_>>,
    ids: &[i64],
) -> Result<bool, Error> {
    let entity = parking.as_ref().map(|parking| &*parking.event.entity_key);
    let event = parking.as_ref().map(|parking| parking.event.id);
    let topic = parking.as_ref().map(|parking| &*parking.event.topic);
    let reason = parking.as_ref().map(|parking| parking.reason);
    let params: Params = &[
        (&shard, Type::INT2),
        (&lease, Type::TEXT),
        (&restart, Type::INT8),
        (&entity, Type::TEXT),
        (&event, Type::INT8),
        (&reason, Type::TEXT),
        (&ids, Type::INT8_ARRAY),
        (&topic, Type::TEXT),
    ];
    let rows = query(client, include_str!("../../../sql/outbox/park.sql"), params).await?;
    Ok(rows.first().is_some_and(|row| row.get(0)))
}

/// What meets a locked row is done later: the events do not wait for it. `None`: it met one.
pub(super) fn not_now<T>(result: Result<T, Error>) -> Result<Option<T>, Error> {
    match result {
        Err(Error::Database(error)) if error.is_locked() => {
            tracing::debug!(%error, "a row of the outbox is locked, will try again");
            Ok(None)
        }
        other => other.map(Some),
    }
}
