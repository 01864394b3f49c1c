//! What a relay with shards does about once a second: who holds what, which events were committed late, and from where the next holder
//! reads.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use tokio_postgres::types::Type;

use super::{SAVE_FLOORS, Shards};
use crate::engine::outbox::acknowledge::not_now;
use crate::engine::outbox::late::{Part, last_id, look_back, writers};
use crate::engine::outbox::ownership::{self, HeldShard, Share};
use crate::engine::outbox::shard::{Shard, span};
use crate::error::Error;
use crate::metrics;
use crate::postgres::query;

/// How often a relay looks which shards are its own, and for events that were committed late.
const TURN: Duration = Duration::from_secs(1);
/// Turns per lease, if that is shorter; and while the relay has fewer shards than its share, four times as many.
const TURNS: u32 = 10;
const PRUNE: Duration = Duration::from_secs(3600);
/// Ids per statement of a look back, so that it stays short when a transaction was open for hours.
const LOOK_IDS: i64 = 1_000_000;
/// Statements per turn of a look back; the next turn goes on.
const LOOKS_MAX: usize = 20;

impl Shards {
    /// What is done about once a second.
    pub(super) async fn turn(&mut self) -> Result<(), Error> {
        self.lease.sweep().await?;
        let Some(relay) = self.lease.relay().map(str::to_owned) else { return Ok(()) };
        let share = self.pool.run(async |client| ownership::acquire(&client, &relay).await).await?;
        let Some(share) = share else {
            // By the database's clock the lease has expired; the next renewal decides.
            self.lease.renew_soon();
            return Ok(());
        };
        metrics::shards_moved("acquired", share.taken);
        self.sync(&relay).await?;
        // Before any floor is written: it finds out whether the floors are those of another database.
        self.look_back().await?;
        if self.stale {
            return Ok(());
        }
        not_now(self.release_surplus(&share).await)?;
        not_now(self.save_floors().await)?;
        self.prune().await?;
        let wait = TURN.min(self.options.lease / TURNS);
        self.next_turn = Instant::now() + if self.held.len() < share.most { wait / 4 } else { wait };
        Ok(())
    }

    /// Compares what is held with the database. A shard that was taken, or whose events were put back, is read from its floor.
    async fn sync(&mut self, relay: &str) -> Result<(), Error> {
        let rows = self.pool.run(async |client| ownership::held(&client, relay).await).await?;
        let still: HashSet<i16> = rows.iter().map(|row| row.shard).collect();
        let before = self.held.len();
        self.held.retain(|shard, _| still.contains(shard));
        metrics::shards_moved("lost", before - self.held.len());
        let is_same = |row: &&HeldShard| {
            self.held
                .get(&row.shard)
                .is_some_and(|held| *held.lease == *row.lease && held.restart == row.restart)
        };
        let changed: Vec<HeldShard> = rows.iter().filter(|row| !is_same(row)).cloned().collect();
        if changed.is_empty() {
            return Ok(());
        }
        let shards: Vec<i16> = changed.iter().map(|row| row.shard).collect();
        // Read after the shards were taken: whoever parked before was their holder, and has committed.
        let parked = self.pool.run(async |client| ownership::parked(&client, &shards).await).await?;
        self.held.extend(changed.iter().map(|row| (row.shard, Shard::new(row))));
        for (shard, entity) in parked {
            if let Some(shard) = self.held.get_mut(&shard) {
                shard.park(&entity);
            }
        }
        Ok(())
    }

    async fn release_surplus(&mut self, share: &Share) -> Result<(), Error> {
        let told_others = self.held.keys().copied().filter(|shard| share.told_others.contains(shard));
        let mut surplus: Vec<i16> = told_others.collect();
        let more = (self.held.len() - surplus.len()).saturating_sub(share.most);
        let others: Vec<i16> = self.held.keys().copied().filter(|shard| !surplus.contains(shard)).collect();
        surplus.extend(others.into_iter().take(more));
        self.give_back(&surplus).await
    }

    /// Gives shards back, with their floors, unless those may be of another database.
    pub(super) async fn give_back(&mut self, shards: &[i16]) -> Result<(), Error> {
        if shards.is_empty() {
            return Ok(());
        }
        let mut rows: Vec<HeldShard> =
            shards.iter().filter_map(|shard| self.held.remove(shard).map(|held| held.row(*shard))).collect();
        if self.stale {
            rows.iter_mut().for_each(|row| row.floor = 0);
        }
        metrics::shards_moved("released", rows.len());
        self.pool.run(async |client| ownership::release(&client, &rows).await).await
    }

    /// Looks for events that were committed below what was read.
    async fn look_back(&mut self) -> Result<(), Error> {
        // The order matters: see `last_id.sql`.
        let last_id = self.pool.run(async |client| last_id(&client).await).await?;
        let open = self.pool.run(async |client| writers(&client).await).await?;
        let look = self.writers.listed(last_id, open);
        // Such a floor would hide all events up to it.
        let is_above = self.held.values().any(|shard| shard.floor > last_id);
        if look.went_back || is_above {
            self.stale = true;
            return self.reset_floors().await;
        }
        let (lowest, highest) = span(self.held.values());
        let mut above = look.above.max(lowest);
        for _ in 0..LOOKS_MAX {
            if above >= highest {
                self.writers.looked();
                self.held.values_mut().for_each(|shard| shard.raise_floor(look.floor));
                break;
            }
            let up_to = above.saturating_add(LOOK_IDS);
            self.look_at(above, up_to).await?;
            above = up_to;
            self.writers.looked_up_to(above);
        }
        Ok(())
    }

    /// Saved floors above the last id: the database was replaced by one that is behind, or the outbox truncated.
    async fn reset_floors(&self) -> Result<(), Error> {
        let shards = self.pool.run(async |client| ownership::reset_floors(&client).await).await?;
        if shards > 0 {
            tracing::warn!(
                shards,
                "the ids of the outbox have gone back: these shards are read from the start"
            );
        }
        Ok(())
    }

    async fn look_at(&mut self, above: i64, up_to: i64) -> Result<(), Error> {
        let parts: Vec<Part> = self
            .held
            .iter()
            .map(|(shard, held)| Part {
                shard: *shard,
                above: above.max(held.floor),
                up_to: up_to.min(held.bound()),
            })
            .filter(|part| part.above < part.up_to)
            .collect();
        if parts.is_empty() {
            return Ok(());
        }
        let found = self.pool.run(async |client| look_back(&client, &parts).await).await?;
        for (shard, id) in found {
            if let Some(shard) = self.held.get_mut(&shard) {
                shard.found_late(id);
            }
        }
        Ok(())
    }

    async fn save_floors(&mut self) -> Result<(), Error> {
        if Instant::now() >= self.next_save {
            let rows: Vec<HeldShard> = self.held.iter().map(|(shard, held)| held.row(*shard)).collect();
            self.pool.run(async |client| ownership::save_floors(&client, &rows).await).await?;
            self.next_save = Instant::now() + SAVE_FLOORS;
        }
        Ok(())
    }

    async fn prune(&mut self) -> Result<(), Error> {
        let Some(keep) = self.options.keep.filter(|_| Instant::now() >= self.next_prune) else {
            return Ok(());
        };
        let (sql, seconds) = (include_str!("../../../../sql/outbox/prune_outbox.sql"), keep.as_secs_f64());
        let pruned =
            self.pool.run(async |client| query(&client, sql, &[(&seconds, Type::FLOAT8)]).await).await;
        if let Err(error) = pruned {
            tracing::warn!(%error, "cannot drop old days of delivered events, will try again");
        }
        self.next_prune = Instant::now() + PRUNE;
        Ok(())
    }
}
