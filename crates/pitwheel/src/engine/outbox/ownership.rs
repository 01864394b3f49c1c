//! Who holds which shard: acquire, list, release, and the floors that the next holder begins at.

use tokio_postgres::types::Type;

use crate::error::Error;
use crate::postgres::{Params, Sql, query};

/// The number of shards. It is part of the schema (`0008_outbox.sql`).
pub const SHARDS: i16 = 64;

/// A shard as its row says that a relay holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HeldShard {
    pub(super) shard: i16,
    pub(super) lease: String,
    pub(super) floor: i64,
    pub(super) restart: i64,
}

/// What a relay may hold.
#[derive(Debug, Clone, Default)]
pub(super) struct Share {
    /// How many shards.
    pub(super) most: usize,
    /// The shards that others were told to hold.
    pub(super) told_others: Vec<i16>,
    /// How many this call took.
    pub(super) taken: usize,
}

/// Takes free shards, up to the fair share. `None`: the relay's lease has expired.
pub(super) async fn acquire(client: &impl Sql, relay: &str) -> Result<Option<Share>, Error> {
    let sql = include_str!("../../../sql/outbox/acquire_shards.sql");
    let rows = query(client, sql, &[(&relay, Type::TEXT)]).await?;
    let Some(first) = rows.first() else { return Ok(None) };
    let most = usize::try_from(first.get::<_, i32>(1)).unwrap_or(0);
    let taken = rows.iter().filter(|row| row.get::<_, Option<i16>>(0).is_some()).count();
    Ok(Some(Share { most, told_others: first.get(2), taken }))
}

/// The shards that a relay holds.
pub(super) async fn held(client: &impl Sql, relay: &str) -> Result<Vec<HeldShard>, Error> {
    let sql = include_str!("../../../sql/outbox/held_shards.sql");
    let rows = query(client, sql, &[(&relay, Type::TEXT)]).await?;
    let shard = |row: &tokio_postgres::Row| HeldShard {
        shard: row.get(0),
        lease: row.get(1),
        floor: row.get(2),
        restart: row.get(3),
    };
    Ok(rows.iter().map(shard).collect())
}

/// The parked entities of shards, each with its shard.
pub(super) async fn parked(client: &impl Sql, shards: &[i16]) -> Result<Vec<(i16, String)>, Error> {
    let sql = include_str!("../../../sql/outbox/parked_of_shards.sql");
    let rows = query(client, sql, &[(&shards, Type::INT2_ARRAY)]).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

/// Gives shards back, each with its floor.
pub(super) async fn release(client: &impl Sql, shards: &[HeldShard]) -> Result<(), Error> {
    write(client, include_str!("../../../sql/outbox/release_shards.sql"), shards).await
}

/// Remembers the floors of shards for the next holder.
pub(super) async fn save_floors(client: &impl Sql, shards: &[HeldShard]) -> Result<(), Error> {
    write(client, include_str!("../../../sql/outbox/save_floors.sql"), shards).await
}

/// Resets saved floors that are above the last id. Returns how many were.
pub(super) async fn reset_floors(client: &impl Sql) -> Result<usize, Error> {
    Ok(query(client, include_str!("../../../sql/outbox/reset_floors.sql"), &[]).await?.len())
}

async fn write(client: &impl Sql, sql: &str, held: &[HeldShard]) -> Result<(), Error> {
    let shards: Vec<i16> = held.iter().map(|one| one.shard).collect();
    let leases: Vec<&str> = held.iter().map(|one| &*one.lease).collect();
    let restarts: Vec<i64> = held.iter().map(|one| one.restart).collect();
    let floors: Vec<i64> = held.iter().map(|one| one.floor).collect();
    let params: Params = &[
        (&shards, Type::INT2_ARRAY),
        (&leases, Type::TEXT_ARRAY),
        (&restarts, Type::INT8_ARRAY),
        (&floors, Type::INT8_ARRAY),
    ];
    query(client, sql, params).await?;
    Ok(())
}
