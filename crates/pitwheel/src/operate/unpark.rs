//! Ending the parking of entities: one transaction, in statements of bounded size. An entity is parked until all of its events are back:
//! else a later one could be sent before them.

use std::collections::HashMap;

use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::error::Error;
use crate::postgres::{Params, Pool, query};

const UNPARK_LIMIT: &str = include_str!("../../sql/operate/unpark_limit.sql");

/// Parked events that one statement puts back or deletes.
const EVENTS_PAGE: i32 = 5000;
/// Ids that one statement looks at for events of dropped entities.
const DROP_IDS: i32 = 20_000;

/// Whose parking ends, and how.
pub(crate) struct Parked<'a> {
    pub(crate) source: &'a str,
    pub(crate) entity_keys: &'a [&'a str],
    pub(crate) how: &'a str,
    pub(crate) actor: &'a str,
}

impl Parked<'_> {
    /// Returns the entities that were parked, each with the number of events that were put back.
    pub(crate) async fn end(&self, pool: &Pool) -> Result<Vec<(String, i64)>, Error> {
        let mut client = pool.get().await?;
        let transaction = client.begin().await?;
        transaction.batch_execute(UNPARK_LIMIT).await?;
        let ended = self.end_within(&transaction).await?;
        transaction.commit().await?;
        Ok(ended)
    }

    async fn end_within(&self, client: &Client) -> Result<Vec<(String, i64)>, Error> {
        let lock: Params =
            &[(&self.source, Type::TEXT), (&self.entity_keys, Type::TEXT_ARRAY), (&self.how, Type::TEXT)];
        let locked = query(client, include_str!("../../sql/operate/lock_parked.sql"), lock).await?;
        // Others of these entities may be parked since: they stay, because their shards are not locked.
        let parked: Vec<String> = locked.first().map(|row| row.get(1)).unwrap_or_default();
        let put_back = self.put_back(client, &parked).await?;
        if self.how == "drop" {
            drop_waiting(client, &parked).await?;
        }
        let end: Params = &[
            (&self.source, Type::TEXT),
            (&parked, Type::TEXT_ARRAY),
            (&self.how, Type::TEXT),
            (&self.actor, Type::TEXT),
        ];
        let rows = query(client, include_str!("../../sql/operate/end_parking.sql"), end).await?;
        let events = |key: &str| put_back.get(key).copied().unwrap_or(0);
        Ok(rows.iter().map(|row| (row.get(0), events(row.get(0)))).collect())
    }

    /// Puts back, or deletes, the events that were moved aside. Returns how many were put back of each entity.
    async fn put_back(&self, client: &Client, parked: &[String]) -> Result<HashMap<String, i64>, Error> {
        let params: Params = &[
            (&self.source, Type::TEXT),
            (&parked, Type::TEXT_ARRAY),
            (&self.how, Type::TEXT),
            (&EVENTS_PAGE, Type::INT4),
        ];
        let mut put_back = HashMap::new();
        loop {
            let rows = query(client, include_str!("../../sql/operate/unpark_events.sql"), params).await?;
            if rows.is_empty() {
                return Ok(put_back);
            }
            for row in &rows {
                *put_back.entry(row.get(0)).or_insert(0) += row.get::<_, i64>(1);
            }
        }
    }
}

/// Deletes the events of parked entities that were not moved aside.
async fn drop_waiting(client: &Client, parked: &[String]) -> Result<(), Error> {
    let mut above: Option<i64> = None;
    loop {
        let params: Params = &[(&parked, Type::TEXT_ARRAY), (&above, Type::INT8), (&DROP_IDS, Type::INT4)];
        let rows = query(client, include_str!("../../sql/operate/drop_waiting.sql"), params).await?;
        let Some(row) = rows.first() else { return Ok(()) };
        above = row.get(0);
    }
}
