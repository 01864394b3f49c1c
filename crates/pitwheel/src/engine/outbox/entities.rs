//! The strategies that hold entities one by one: `advisory` and `row-lock`. They also work on a table of a team's own.
//!
//! A lock ends with the transaction that takes it, before anything was sent. So a transaction takes the locks, and then, with a new
//! snapshot, writes claims: an entity with a claim is held until its events are acknowledged or its relay is dead. The locks keep
//! relays from waiting for each other; the claims, which have a random lease each, are what every later write names.

mod sent;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::engine::outbox::acknowledge::not_now;
use crate::engine::outbox::claim::{Candidate, Claims, EntityLock};
use crate::engine::outbox::event::{Acknowledged, Batch, Event, Place, headers};
use crate::engine::outbox::lease::{Kept, RelayLease, RelayOptions};
use crate::engine::outbox::source::SourceTable;
use crate::engine::outbox::strategy::Strategy;
use crate::engine::outbox::write_sent::{LOCKED_WAIT, Written, write_sent};
use crate::error::Error;
use crate::metrics;
use crate::postgres::{Ctid, Params, Pool, Sql, query};

/// How often relays are declared dead whose lease has expired.
const SWEEP: Duration = Duration::from_secs(1);
/// With the longest name of a source, what the index of the claims accepts.
const KEY_BYTES_MAX: usize = 2500;
/// Entities per claim: each takes a lock until the commit, and the server's memory for locks is limited.
const ENTITIES_MAX: usize = 200;
/// Events per entity to expect, so that a batch is filled and not much more.
const EVENTS_EXPECTED: usize = 4;
/// Events that an entity returns at least, however many entities there are.
const EVENTS_MIN: usize = 10;
/// Claims that are left out at a time: what they hold, no other relay can send.
const POSTPONED_MAX: usize = 1000;
/// Bytes of payloads per read, of all entities together. An entity returns one event at least.
const BYTES_MAX: usize = 32 * 1024 * 1024;

/// The entities that one relay holds.
pub struct Entities {
    pool: Pool,
    source: SourceTable,
    source_name: String,
    claims: Claims,
    lease: RelayLease,
    held: BTreeMap<String, Claim>,
    /// Where the next claim begins in the order of keys.
    next_key: String,
    index_checked: bool,
    long_key_reported: bool,
    /// Whether the last acknowledgement met a locked row. Then the next one looks for locks first, and waits for none.
    meets_locks: bool,
    next_sweep: Instant,
    /// When the claims at the database are compared with those that are known here; after an error, at once.
    next_check: Instant,
}

struct Claim {
    lease: Arc<str>,
    /// Events that were taken and not acknowledged.
    taken: BTreeSet<i64>,
    /// Until when it is left out of reads; `None`: it is not.
    postponed: Option<Instant>,
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
        let lease = RelayLease::new(pool.clone(), options, &source_name, lock.name())?;
        let now = Instant::now();
        Ok(Entities {
            claims: Claims::new(pool.clone(), &source, lock),
            pool,
            source,
            source_name,
            lease,
            held: BTreeMap::new(),
            next_key: String::new(),
            index_checked: false,
            long_key_reported: false,
            meets_locks: false,
            next_sweep: now,
            next_check: now,
        })
    }

    /// Refuses a table that does not fit, or without the index that claims need. Otherwise the first [`Strategy::take`] does.
    pub async fn check_table(&self) -> Result<(), Error> {
        self.source.check_index(&self.pool.get().await?).await
    }

    /// After an error, the next take looks what is held: a statement may have been committed all the same.
    fn noted<T>(&mut self, result: Result<T, Error>) -> Result<T, Error> {
        if result.is_err() {
            self.next_check = Instant::now();
        }
        result
    }

    async fn try_take(&mut self, limit: usize) -> Result<Vec<Event>, Error> {
        if self.lease.keep().await? == Kept::New {
            self.held.clear();
        }
        if !self.index_checked {
            self.source.check_index(&self.pool.get().await?).await?;
            self.index_checked = true;
        }
        if Instant::now() >= self.next_sweep {
            self.lease.sweep().await?;
            self.next_sweep = Instant::now() + SWEEP;
        }
        if Instant::now() >= self.next_check {
            self.free_unknown().await?;
            self.next_check = Instant::now() + self.lease.length();
        }
        let now = Instant::now();
        self.held
            .values_mut()
            .for_each(|claim| claim.postponed = claim.postponed.filter(|until| *until > now));
        if (self.held.len() - self.postponed()) * EVENTS_EXPECTED < limit {
            self.claim((limit / EVENTS_EXPECTED).clamp(2, ENTITIES_MAX)).await?;
        }
        self.read(limit).await
    }

    /// How many claims are left out.
    fn postponed(&self) -> usize {
        self.held.values().filter(|claim| claim.postponed.is_some()).count()
    }

    /// Ends claims that are not known here, which else would be held as long as this relay lives.
    async fn free_unknown(&self) -> Result<(), Error> {
        let Some(relay) = self.lease.relay() else { return Ok(()) };
        let (_, leases) = self.columns(self.held.keys());
        self.claims.free_unknown(relay, &leases).await
    }

    /// Claims the next entities, in the order of their keys. At the end, the next claim begins again.
    async fn claim(&mut self, most: usize) -> Result<(), Error> {
        let mut found = self.claims.candidates(&self.next_key, most).await?;
        let last = found.last().filter(|_| found.len() == most).map(|candidate| candidate.key.clone());
        self.leave_out_long_keys(&mut found);
        let dead = found.iter().filter_map(|one| Some((one.key.clone(), one.dead_lease.clone()?)));
        let (dead_keys, dead_leases): (Vec<String>, Vec<String>) = dead.unzip();
        self.claims.free(&dead_keys, &dead_leases).await?;
        let free: Vec<String> = found.into_iter().filter(|one| one.is_free).map(|one| one.key).collect();
        if let Some(relay) = self.lease.relay().filter(|_| !free.is_empty()) {
            let claimed = self.claims.claim(&free, relay, self.lease.length()).await?;
            let new = |lease: String| Claim { lease: lease.into(), taken: BTreeSet::new(), postponed: None };
            self.held.extend(claimed.into_iter().map(|(key, lease)| (key, new(lease))));
        }
        self.next_key = last.unwrap_or_default();
        Ok(())
    }

    /// Events with such a key stay in their table.
    fn leave_out_long_keys(&mut self, found: &mut Vec<Candidate>) {
        let Some(long) = found.iter().find(|one| one.key.len() > KEY_BYTES_MAX) else { return };
        if !self.long_key_reported {
            let (source, bytes) = (&*self.source_name, long.key.len());
            tracing::error!(
                source,
                bytes,
                "an entity key is longer than {KEY_BYTES_MAX} bytes: its events are not sent"
            );
            self.long_key_reported = true;
        }
        found.retain(|one| one.key.len() <= KEY_BYTES_MAX);
    }

    /// The events of the entities that are held. Those without events are given back.
    async fn read(&mut self, limit: usize) -> Result<Vec<Event>, Error> {
        let to_read = self.held.iter().filter(|(_, claim)| claim.postponed.is_none());
        let (keys, leases) = self.columns(to_read.map(|(key, _)| key));
        if keys.is_empty() {
            return Ok(Vec::new());
        }
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
        let read = self.held.values_mut().filter(|claim| claim.postponed.is_none());
        read.for_each(|claim| claim.taken.clear());
        let mut events = Vec::with_capacity(rows.len());
        for row in &rows {
            if let Some(claim) = self.held.get_mut(row.get::<_, &str>(0)) {
                claim.taken.insert(row.get(1));
                events.push(event(row, claim.lease.clone())?);
            }
        }
        events.sort_by(|one, other| (&one.entity_key, one.id).cmp(&(&other.entity_key, other.id)));
        self.free_empty().await?;
        Ok(events)
    }

    async fn free_empty(&mut self) -> Result<(), Error> {
        let empty = self.held.iter().filter(|(_, claim)| claim.taken.is_empty()).map(|(key, _)| key);
        let (keys, leases) = self.columns(empty);
        self.claims.free(&keys, &leases).await?;
        self.held.retain(|_, claim| !claim.taken.is_empty());
        Ok(())
    }

    /// Entities that are held, and their leases.
    fn columns<'a>(&'a self, keys: impl Iterator<Item = &'a String>) -> (Vec<String>, Vec<String>) {
        let held =
            keys.filter_map(|key| self.held.get(key).map(|claim| (key.clone(), claim.lease.to_string())));
        held.unzip()
    }

    async fn try_park(&mut self, event: &Event, reason: &str) -> Result<bool, Error> {
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
        let rows = self.pool.run(async |client| query(&client, sql, params).await).await;
        let Some(rows) = not_now(rows)? else {
            // If there is no room for it, it is sent again sooner, and refused again.
            let _ = self.postpone(event, Instant::now() + LOCKED_WAIT);
            return Ok(false);
        };
        let parked = rows.first().is_some_and(|row| row.get(0));
        self.held.remove(&event.entity_key);
        if parked {
            metrics::outbox_parked();
        }
        Ok(parked)
    }
}

impl Strategy for Entities {
    async fn take(&mut self, limit: usize) -> Result<Batch, Error> {
        let taken = self.try_take(limit).await;
        Ok(Batch { events: self.noted(taken)?, deadline: self.lease.deadline() })
    }

    async fn acknowledge(&mut self, sent: &[Event]) -> Result<Acknowledged, Error> {
        let written = write_sent(self, sent).await;
        let Written { lost, locked, refused, must_wait } = self.noted(written)?;
        Ok(Acknowledged { lost, locked, refused, must_wait, deadline: self.lease.deadline() })
    }

    async fn park(&mut self, event: &Event, reason: &str) -> Result<bool, Error> {
        let parked = self.try_park(event, reason).await;
        self.noted(parked)
    }

    fn postpone(&mut self, event: &Event, until: Instant) -> bool {
        let has_room = self.postponed() < POSTPONED_MAX;
        let claim = self.held.get_mut(&event.entity_key);
        let claim = claim.filter(|claim| has_room || claim.postponed.is_some());
        claim.map(|claim| claim.postponed = Some(until)).is_some()
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
fn event(row: &Row, lease: Arc<str>) -> Result<Event, Error> {
    let text = |at: usize| row.get::<_, Option<String>>(at).unwrap_or_default();
    let (headers, unreadable) = headers(row, 6)?;
    Ok(Event {
        place: Place { shard: 0, lease, ctid: Ctid::default() },
        entity_key: row.get(0),
        id: row.get(1),
        created_at: row.get(2),
        topic: text(3),
        kind: text(4),
        payload: row.get(5),
        headers,
        unreadable,
    })
}
