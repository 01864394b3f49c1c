//! Deleting or marking the delivered events of entities.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Instant;

use tokio_postgres::types::Type;

use super::Entities;
use crate::engine::outbox::event::Event;
use crate::engine::outbox::strategy::Strategy;
use crate::engine::outbox::write_sent::WriteSent;
use crate::error::Error;
use crate::metrics;
use crate::postgres::{Params, Sql, query};

impl WriteSent for Entities {
    async fn renew(&mut self) -> Result<(), Error> {
        if !self.lease.renew().await? {
            self.held.clear();
        }
        Ok(())
    }

    async fn write(&mut self, sent: &[Event]) -> Result<usize, Error> {
        let begun = Instant::now();
        let still_held = self.finish(sent).await?;
        let mut lost = 0;
        for event in sent {
            if !still_held.contains(&event.entity_key) {
                lost += 1;
                if self.holds(event) {
                    self.held.remove(&event.entity_key);
                }
            } else if let Some(claim) = self.held.get_mut(&event.entity_key) {
                claim.taken.remove(&event.id);
            }
        }
        self.held.retain(|_, claim| !claim.taken.is_empty());
        metrics::outbox_acknowledged(sent.len() - lost, lost, begun.elapsed());
        Ok(lost)
    }

    async fn locked(&self, sent: &[Event]) -> Result<HashSet<i64>, Error> {
        let keys: Vec<&str> = sent.iter().map(|event| &*event.entity_key).collect();
        let ids: Vec<i64> = sent.iter().map(|event| event.id).collect();
        let sql = self.source.statement(include_str!("../../../../sql/outbox/locked_entities.sql"));
        let params: Params = &[(&keys, Type::TEXT_ARRAY), (&ids, Type::INT8_ARRAY)];
        let rows = self.pool.run(async |client| query(&client, &sql, params).await).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    fn meets_locks(&mut self) -> &mut bool {
        &mut self.meets_locks
    }
}

impl Entities {
    /// Marks or deletes delivered events. Returns the entities that were still held.
    async fn finish(&self, sent: &[Event]) -> Result<BTreeSet<String>, Error> {
        let leases: BTreeMap<&str, &str> =
            sent.iter().map(|event| (&*event.entity_key, &*event.place.lease)).collect();
        let (keys, leases): (Vec<&str>, Vec<&str>) = leases.into_iter().unzip();
        let key_of_each: Vec<&str> = sent.iter().map(|event| &*event.entity_key).collect();
        let ids: Vec<i64> = sent.iter().map(|event| event.id).collect();
        let all_sent: BTreeSet<i64> = ids.iter().copied().collect();
        let is_done = |key: &&str| self.held.get(*key).is_none_or(|claim| claim.taken.is_subset(&all_sent));
        let done: Vec<&str> = keys.iter().copied().filter(is_done).collect();
        let sql = self.source.statement(include_str!("../../../../sql/outbox/sent_entities.sql"));
        let params: Params = &[
            (&self.source_name, Type::TEXT),
            (&keys, Type::TEXT_ARRAY),
            (&leases, Type::TEXT_ARRAY),
            (&key_of_each, Type::TEXT_ARRAY),
            (&ids, Type::INT8_ARRAY),
            (&done, Type::TEXT_ARRAY),
        ];
        let rows = self.pool.run(async |client| client.rows(&sql, params).await).await?;
        Ok(rows.first().map(|row| row.get::<_, Vec<String>>(0)).unwrap_or_default().into_iter().collect())
    }
}
