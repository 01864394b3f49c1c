//! The strategy by default: entities are hashed into shards, and relays lease shards.
//!
//! A relay holds its fair share of the shards. It reads their events in the order of ids, from a floor that it remembers: no locks, no
//! claim that is written. Every write names the lease of the shard, which is random for each acquisition. What is committed below the bound
//! later is found beside the reads (`late.rs`).

mod turn;

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use crate::engine::outbox::acknowledge::{Parking, acknowledge, locked, not_now, park};
use crate::engine::outbox::add::TABLE;
use crate::engine::outbox::event::{Acknowledged, Batch, Event};
use crate::engine::outbox::late::{Writers, last_id};
use crate::engine::outbox::lease::{Kept, RelayLease, RelayOptions};
use crate::engine::outbox::ownership::SHARDS;
use crate::engine::outbox::read::{Asked, read};
use crate::engine::outbox::shard::{Shard, quotas};
use crate::engine::outbox::strategy::Strategy;
use crate::engine::outbox::write_sent::{LOCKED_WAIT, WriteSent, Written, write_sent};
use crate::error::Error;
use crate::metrics;
use crate::postgres::Pool;

/// How often floors are saved. The next holder of a shard reads past what was delivered since.
const SAVE_FLOORS: Duration = Duration::from_secs(60);

/// The shards of one relay.
pub struct Shards {
    pool: Pool,
    options: RelayOptions,
    lease: RelayLease,
    held: BTreeMap<i16, Shard>,
    writers: Writers,
    /// After an error, what is held is read again: a statement may have been committed all the same, or the database replaced by
    /// another one.
    stale: bool,
    /// Whether the last acknowledgement met a locked row. Then the next one looks for locks first, and waits for none.
    meets_locks: bool,
    /// With which shard the next move of parked events begins.
    next_move: i16,
    next_turn: Instant,
    next_save: Instant,
    next_prune: Instant,
}

impl Shards {
    /// A relay that holds no shards yet. The pool is used by this relay only ([`Pitwheel::pool_for_loops`](crate::Pitwheel::pool_for_loops));
    /// two connections are enough.
    pub fn new(pool: Pool, options: RelayOptions) -> Result<Shards, Error> {
        if let Some(shard) = options.shards.iter().flatten().find(|shard| !(0..SHARDS).contains(*shard)) {
            return Err(Error::Invalid(format!("shard {shard} does not exist: 0 to {}", SHARDS - 1)));
        }
        let lease = RelayLease::new(pool.clone(), options.clone(), TABLE, "shards")?;
        let now = Instant::now();
        Ok(Shards {
            pool,
            options,
            lease,
            held: BTreeMap::new(),
            writers: Writers::default(),
            stale: false,
            meets_locks: false,
            next_move: 0,
            next_turn: now,
            next_save: now + SAVE_FLOORS,
            next_prune: now,
        })
    }

    /// The shards that it holds.
    pub fn held(&self) -> Vec<i16> {
        self.held.keys().copied().collect()
    }

    /// The next take compares what is held with the database, and looks for events that were committed late, even if that is not due.
    pub fn turn_soon(&mut self) {
        self.next_turn = Instant::now();
    }

    /// The lease has expired.
    fn lose_all(&mut self) {
        metrics::shards_moved("lost", self.held.len());
        self.held.clear();
        self.next_turn = Instant::now();
    }

    /// After an error, the next take looks what is held.
    fn noted<T>(&mut self, result: Result<T, Error>) -> Result<T, Error> {
        self.stale |= result.is_err();
        result
    }

    async fn try_take(&mut self, limit: usize) -> Result<Vec<Event>, Error> {
        if self.lease.keep().await? == Kept::New {
            self.lose_all();
        }
        if std::mem::take(&mut self.stale) {
            self.held.clear();
            self.writers = Writers::default();
            self.next_turn = Instant::now();
        }
        if Instant::now() >= self.next_turn {
            self.turn().await?;
        }
        if self.stale {
            return Ok(Vec::new());
        }
        self.read(limit).await
    }

    async fn read(&mut self, limit: usize) -> Result<Vec<Event>, Error> {
        if self.held.is_empty() {
            return Ok(Vec::new());
        }
        let (quotas, now) = (quotas(limit, self.held.values()), Instant::now());
        let left_out: Vec<String> =
            self.held.values_mut().flat_map(|held| held.leave_out(now).cloned()).collect();
        let asked: Vec<Asked> = self
            .held
            .iter()
            .zip(quotas)
            .map(|((shard, held), most)| Asked {
                shard: *shard,
                lease: held.lease.clone(),
                restart: held.restart,
                // Not from the bound: below it, an event may have been committed late. The next event of its entity, in a later
                // transaction, is above the bound, and would be sent before it until the look back finds it.
                bound: held.floor,
                most,
            })
            .collect();
        let begun = Instant::now();
        let mut events = self.pool.run(async |client| read(&client, &asked, &left_out).await).await?;
        metrics::outbox_read(begun.elapsed());
        let mut rest = &events[..];
        for one in &asked {
            let (own, others) = rest.split_at(rest.partition_point(|event| event.place.shard <= one.shard));
            rest = others;
            let Some(held) = self.held.get_mut(&one.shard) else { continue };
            let most = usize::try_from(one.most).unwrap_or(0);
            metrics::outbox_late(held.read(most, own.iter().map(|event| (event.id, &*event.entity_key))));
        }
        self.move_parked().await?;
        let is_parked = |event: &Event| {
            self.held.get(&event.place.shard).is_none_or(|held| held.is_parked(&event.entity_key))
        };
        events.retain(|event| !is_parked(event));
        Ok(events)
    }

    /// Moves events of parked entities behind the others of these. At a locked row it stops, and these entities are left out of reads for a while:
    /// otherwise each read would wait for the lock, and return the same events. The next time, it begins with the shard behind.
    async fn move_parked(&mut self) -> Result<(), Error> {
        let moves = self.held.iter().map(|(shard, held)| (*shard, held.taken_of_parked()));
        let mut moves: Vec<(i16, Vec<i64>)> = moves.filter(|(_, ids)| !ids.is_empty()).collect();
        let begin = moves.partition_point(|(shard, _)| *shard < self.next_move);
        moves.rotate_left(begin);
        for (at, (shard, ids)) in moves.iter().enumerate() {
            let moved = self.move_events(*shard, None, ids).await;
            if not_now(moved)?.is_none() {
                self.next_move = shard + 1;
                let until = Instant::now() + LOCKED_WAIT;
                for (shard, _) in &moves[at..] {
                    self.held.get_mut(shard).into_iter().for_each(|held| held.postpone_parked(until));
                }
                break;
            }
        }
        Ok(())
    }

    async fn move_events(
        &mut self,
        shard: i16,
        parking: Option<Parking<'_>>,
        ids: &[i64],
    ) -> Result<bool, Error> {
        let Some(held) = self.held.get_mut(&shard) else { return Ok(false) };
        let fence = (shard, &*held.lease, held.restart);
        let moved = self.pool.run(async |client| park(&client, fence, parking, ids).await).await?;
        if moved {
            held.moved(ids);
        } else {
            // Lost, or to be read from its floor: the next turn finds out which.
            self.next_turn = Instant::now();
        }
        Ok(moved)
    }

    async fn try_park(&mut self, event: &Event, reason: &str) -> Result<bool, Error> {
        if !self.holds(event) {
            return Ok(false);
        }
        let shard = event.place.shard;
        let ids = self.held.get(&shard).map(|held| held.taken_from(&event.entity_key, event.id));
        let parking = Some(Parking { event, reason });
        let parked = self.move_events(shard, parking, &ids.unwrap_or_default()).await;
        let Some(parked) = not_now(parked)? else {
            // If there is no room for it, it is sent again sooner, and refused again.
            let _ = self.postpone(event, Instant::now() + LOCKED_WAIT);
            return Ok(false);
        };
        if let Some(held) = self.held.get_mut(&shard).filter(|_| parked) {
            held.park(&event.entity_key);
            metrics::outbox_parked();
        }
        Ok(parked)
    }
}

impl Strategy for Shards {
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
        let held = self.held.get_mut(&event.place.shard);
        held.is_some_and(|held| held.postpone(&event.entity_key, until))
    }

    fn holds(&self, event: &Event) -> bool {
        self.held.get(&event.place.shard).is_some_and(|held| held.lease == event.place.lease)
    }

    async fn release(&mut self) -> Result<(), Error> {
        let last_id = self.pool.run(async |client| last_id(&client).await).await;
        self.stale |= last_id.is_ok_and(|last_id| self.writers.is_behind(last_id));
        let shards = self.held();
        let released = self.give_back(&shards).await;
        // If that failed, the end of the relay frees them too.
        self.lease.end().await?;
        released
    }
}

impl WriteSent for Shards {
    async fn renew(&mut self) -> Result<(), Error> {
        if !self.lease.renew().await? {
            self.lose_all();
        }
        Ok(())
    }

    async fn write(&mut self, sent: &[Event]) -> Result<usize, Error> {
        let (begun, keep) = (Instant::now(), self.options.keep.is_some());
        let still_held = self.pool.run(async |client| acknowledge(&client, sent, keep).await).await?;
        let mut lost = 0;
        for event in sent {
            if !still_held.contains(&event.place.shard) {
                lost += 1;
                if self.holds(event) {
                    self.held.remove(&event.place.shard);
                }
            } else if let Some(held) = self.held.get_mut(&event.place.shard) {
                held.delivered(event.id);
            }
        }
        metrics::outbox_acknowledged(sent.len() - lost, lost, begun.elapsed());
        Ok(lost)
    }

    async fn locked(&self, sent: &[Event]) -> Result<HashSet<i64>, Error> {
        self.pool.run(async |client| locked(&client, sent).await).await
    }

    fn meets_locks(&mut self) -> &mut bool {
        &mut self.meets_locks
    }
}
