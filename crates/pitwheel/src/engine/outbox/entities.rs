//! The strategies that hold entities one by one: `advisory` and `row-lock`. They also work on a table of a team's own.
//!
//! A lock ends with the transaction that takes it, before anything was sent. So a transaction takes the locks, and then, with a new
//! snapshot, writes claims: an entity with a claim is held until its events are acknowledged or its relay is dead. The locks keep
//! relays from waiting for each other; the claims, which have a random lease each, are what every later write names.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::engine::outbox::event::{Acknowledged, Batch, Event, Place};
use crate::engine::outbox::lease::{Kept, RelayLease, RelayOptions};
use crate::engine::outbox::source::SourceTable;
use crate::engine::outbox::strategy::Strategy;
use crate::error::Error;
use crate::metrics;
use crate::postgres::{Ctid, Params, Pool, Sql, query};

/// How often relays are declared dead whose lease has expired.
const SWEEP: Duration = Duration::from_secs(1);
/// Entities per claim: each takes a lock until the commit, and the server's memory for locks is limited.
const ENTITIES_MAX: usize = 200;
/// Events per entity to expect, so that a batch is filled and not much more.
const EVENTS_EXPECTED: usize = 4;
/// Events that an entity returns at least, however many entities there are.
const EVENTS_MIN: usize = 10;
/// Bytes of payloads per read, of all entities together. An entity returns one event at least.
const BYTES_MAX: usize = 32 * 1024 * 1024;

/// How entities are locked while they are claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntityLock {
    /// By an advisory lock.
    Advisory,
    /// By the row of the entity's first event.
    Row,
}

/// The entities that one relay holds.
pub struct Entities {
    pool: Pool,
    source: SourceTable,
    source_name: String,
    lock: EntityLock,
    lease: RelayLease,
    held: BTreeMap<String, Claim>,
    /// Where the next claim begins in the order of keys.
    after: String,
    index_checked: bool,
    /// After an error, all claims are given up: one may have been committed that is not known here.
    stale: bool,
    next_sweep: Instant,
}

struct Claim {
    lease: Arc<str>,
    /// Events that were taken and not acknowledged.
    taken: BTreeSet<i64>,
}

impl Entities {
    /// A relay that holds no entities yet. The pool is used by this relay only.
    pub fn new(
        pool: Pool,
        options: RelayOptions,
        source: SourceTable,
        lock: EntityLock,
    ) -> Result<Entities, Error> {
        source.check()?;
        if options.keep.is_some() || options.shards.is_some() {
            return Err(Error::Invalid(
                "a relay that claims entities has no shards and keeps no delivered events: mark them instead"
                    .into(),
            ));
        }
        let source_name = source.name();
        let strategy = match lock {
            EntityLock::Advisory => "advisory",
            EntityLock::Row => "row-lock",
        };
        let lease = RelayLease::new(pool.clone(), options, &source_name, strategy)?;
        Ok(Entities {
            pool,
            source,
            source_name,
            lock,
            lease,
            held: BTreeMap::new(),
            after: String::new(),
            index_checked: false,
            stale: false,
            next_sweep: Instant::now(),
        })
    }

    /// Refuses a table that does not exist, or without the index that claims need. Otherwise the first [`Strategy::take`] does.
    pub async fn check_table(&self) -> Result<(), Error> {
        self.source.check_index(&self.pool.get().await?).await
    }

    async fn keep_lease(&mut self) -> Result<(), Error> {
        if std::mem::take(&mut self.stale) {
            self.held.clear();
            self.lease.end().await?;
        }
        if self.lease.keep().await? == Kept::New {
            self.held.clear();
        }
        Ok(())
    }

    async fn try_take(&mut self, limit: usize) -> Result<Vec<Event>, Error> {
        self.keep_lease().await?;
        if !self.index_checked {
            self.source.check_index(&self.pool.get().await?).await?;
            self.index_checked = true;
        }
        if Instant::now() >= self.next_sweep {
            self.lease.sweep().await?;
            self.next_sweep = Instant::now() + SWEEP;
        }
        if self.held.len() * EVENTS_EXPECTED < limit {
            self.claim((limit / EVENTS_EXPECTED).clamp(1, ENTITIES_MAX)).await?;
        }
        self.read(limit).await
    }

    /// Claims the next entities, in the order of their keys. At the end, the next claim begins again.
    async fn claim(&mut self, most: usize) -> Result<(), Error> {
        let client = self.pool.get().await?;
        let sql = self.source.statement(include_str!("../../../sql/outbox/candidates.sql"));
        let asked = most as i64;
        let params: Params =
            &[(&self.after, Type::TEXT), (&asked, Type::INT8), (&self.source_name, Type::TEXT)];
        let found = client.rows(&sql, params).await?;
        let last = found.last().filter(|_| found.len() == most).map(|row| row.get(0));
        let candidates: Vec<String> = found.iter().filter(|row| row.get(1)).map(|row| row.get(0)).collect();
        drop(client);
        if !candidates.is_empty() {
            let claimed = self.lock_and_claim(&candidates).await?;
            self.held.extend(
                claimed
                    .into_iter()
                    .map(|(key, lease)| (key, Claim { lease: lease.into(), taken: BTreeSet::new() })),
            );
        }
        self.after = last.unwrap_or_default();
        Ok(())
    }

    /// In one transaction: the locks, then the claims, by a statement of its own, which sees what was committed before the locks were
    /// taken.
    async fn lock_and_claim(&self, candidates: &[String]) -> Result<Vec<(String, String)>, Error> {
        let Some(relay) = self.lease.relay() else { return Ok(Vec::new()) };
        let mut client = self.pool.get().await?;
        let transaction = client.transaction().await?;
        let locked = match self.lock {
            EntityLock::Advisory => {
                let params: Params = &[(&candidates, Type::TEXT_ARRAY), (&self.source_name, Type::TEXT)];
                query(transaction.client(), include_str!("../../../sql/outbox/lock_advisory.sql"), params)
                    .await?
            }
            EntityLock::Row => {
                let sql = self.source.statement(include_str!("../../../sql/outbox/lock_heads.sql"));
                query(transaction.client(), &sql, &[(&candidates, Type::TEXT_ARRAY)]).await?
            }
        };
        let locked: Vec<String> = locked.iter().map(|row| row.get(0)).collect();
        let params: Params =
            &[(&self.source_name, Type::TEXT), (&locked, Type::TEXT_ARRAY), (&relay, Type::TEXT)];
        let sql = include_str!("../../../sql/outbox/claim_entities.sql");
        let claimed = query(transaction.client(), sql, params).await?;
        transaction.commit().await?;
        Ok(claimed.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    /// The events of the entities that are held. Those without events are given back.
    async fn read(&mut self, limit: usize) -> Result<Vec<Event>, Error> {
        if self.held.is_empty() {
            return Ok(Vec::new());
        }
        let (keys, leases) = self.columns(self.held.keys());
        let most = (limit / keys.len()).max(EVENTS_MIN) as i64;
        let bytes = (BYTES_MAX / keys.len()) as i64;
        let sql = self.source.statement(include_str!("../../../sql/outbox/read_entities.sql"));
        let params: Params = &[
            (&self.source_name, Type::TEXT),
            (&keys, Type::TEXT_ARRAY),
            (&leases, Type::TEXT_ARRAY),
            (&most, Type::INT8),
            (&bytes, Type::INT8),
        ];
        let begun = Instant::now();
        let rows = self.pool.run(async |client| client.rows(&sql, params).await).await?;
        metrics::outbox_read(begun.elapsed());
        self.held.values_mut().for_each(|claim| claim.taken.clear());
        let mut events = Vec::with_capacity(rows.len());
        for row in &rows {
            if let Some(claim) = self.held.get_mut(row.get::<_, &str>(0)) {
                claim.taken.insert(row.get(1));
                events.push(event(row, claim.lease.clone()));
            }
        }
        events.sort_by(|one, other| (&one.entity_key, one.id).cmp(&(&other.entity_key, other.id)));
        self.free_empty().await?;
        Ok(events)
    }

    async fn free_empty(&mut self) -> Result<(), Error> {
        let empty = self.held.iter().filter(|(_, claim)| claim.taken.is_empty()).map(|(key, _)| key);
        let (keys, leases) = self.columns(empty);
        if keys.is_empty() {
            return Ok(());
        }
        let params: Params =
            &[(&self.source_name, Type::TEXT), (&keys, Type::TEXT_ARRAY), (&leases, Type::TEXT_ARRAY)];
        let sql = include_str!("../../../sql/outbox/free_entities.sql");
        self.pool.run(async |client| query(&client, sql, params).await).await?;
        self.held.retain(|_, claim| !claim.taken.is_empty());
        Ok(())
    }

    /// Entities that are held, and their leases.
    fn columns<'a>(&'a self, keys: impl Iterator<Item = &'a String>) -> (Vec<String>, Vec<String>) {
        let held =
            keys.filter_map(|key| self.held.get(key).map(|claim| (key.clone(), claim.lease.to_string())));
        held.unzip()
    }

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
        let sql = self.source.statement(include_str!("../../../sql/outbox/sent_entities.sql"));
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

impl Strategy for Entities {
    async fn take(&mut self, limit: usize) -> Result<Batch, Error> {
        let taken = self.try_take(limit).await;
        self.stale |= taken.is_err();
        Ok(Batch { events: taken?, deadline: self.lease.deadline() })
    }

    async fn acknowledge(&mut self, sent: &[Event]) -> Result<Acknowledged, Error> {
        let kept = self.keep_lease().await;
        self.stale |= kept.is_err();
        kept?;
        if sent.is_empty() {
            return Ok(Acknowledged { lost: 0, deadline: self.lease.deadline() });
        }
        let begun = Instant::now();
        let finished = self.finish(sent).await;
        self.stale |= finished.is_err();
        let still_held = finished?;
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
        Ok(Acknowledged { lost, deadline: self.lease.deadline() })
    }

    async fn park(&mut self, event: &Event, reason: &str) -> Result<bool, Error> {
        if !self.holds(event) {
            return Ok(false);
        }
        let lease: &str = &event.place.lease;
        let params: Params = &[
            (&self.source_name, Type::TEXT),
            (&event.entity_key, Type::TEXT),
            (&lease, Type::TEXT),
            (&event.id, Type::INT8),
            (&event.topic, Type::TEXT),
            (&reason, Type::TEXT),
        ];
        let sql = include_str!("../../../sql/outbox/park_entity.sql");
        let parked = self.pool.run(async |client| query(&client, sql, params).await).await;
        self.stale |= parked.is_err();
        let parked = parked?.first().is_some_and(|row| row.get(0));
        self.held.remove(&event.entity_key);
        if parked {
            metrics::outbox_parked();
        }
        Ok(parked)
    }

    fn holds(&self, event: &Event) -> bool {
        self.held.get(&event.entity_key).is_some_and(|claim| claim.lease == event.place.lease)
    }

    async fn release(&mut self) -> Result<(), Error> {
        self.held.clear();
        self.lease.end().await
    }
}

/// An event of a table that may not have our constraints: what is missing is empty, and no sink accepts it.
fn event(row: &Row, lease: Arc<str>) -> Event {
    let text = |at: usize| row.get::<_, Option<String>>(at).unwrap_or_default();
    let headers = match row.get(6) {
        Some(Value::Object(headers)) => Some(headers),
        _ => None,
    };
    Event {
        place: Place { shard: 0, lease, ctid: Ctid::default() },
        entity_key: row.get(0),
        id: row.get(1),
        created_at: row.get(2),
        topic: text(3),
        kind: text(4),
        payload: row.get(5),
        headers,
    }
}
