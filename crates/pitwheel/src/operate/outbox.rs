//! The handle for the outbox.

use std::sync::Arc;
use std::time::SystemTime;

use tokio_postgres::types::Type;

use crate::engine::enqueue::micros;
use crate::engine::outbox::add;
use crate::error::Error;
use crate::job::new_event::NewEvent;
use crate::metrics;
use crate::operate::outbox_views::{self, EventTrace, OutboxStatus, ParkedEntity};
use crate::operate::unpark::Parked;
use crate::postgres::{Params, Pool, query};

/// Entities per change: it is one transaction.
const CHANGE_MAX: usize = 1000;
/// Ids that one statement of a replay looks at. There is no index on the entity or the time of delivered events.
const REPLAY_IDS: i32 = 20_000;
/// Delivered events per statement of a replay, so that each is short.
const REPLAY_PAGE: i32 = 5000;

/// How the parking of an entity ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unpark {
    /// All its events are sent again, in order.
    Retry,
    /// The event that was refused is deleted, and the others are sent. Consumers miss one event.
    Skip,
    /// All its events that wait are deleted.
    Drop,
}

impl Unpark {
    /// Its name: `retry`, `skip` or `drop`.
    pub fn as_str(self) -> &'static str {
        match self {
            Unpark::Retry => "retry",
            Unpark::Skip => "skip",
            Unpark::Drop => "drop",
        }
    }
}

/// Which delivered events are sent again. All conditions hold for each of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Replay {
    /// From this id on.
    pub first_id: Option<i64>,
    /// Delivered at this time or later.
    pub since: Option<SystemTime>,
    /// Of this entity only.
    pub entity_key: Option<String>,
}

/// The outbox: events that relays deliver, in order within each entity. Made by [`Pitwheel::outbox`](crate::Pitwheel::outbox).
#[derive(Clone)]
pub struct Outbox {
    pool: Pool,
    actor: Arc<str>,
}

impl Outbox {
    /// The table of the outbox, as the `source` of its events and entities.
    pub const TABLE: &str = add::TABLE;

    pub(crate) fn new(pool: Pool, actor: Arc<str>) -> Outbox {
        Outbox { pool, actor }
    }

    /// Adds events, 500 or 4 MiB per statement; each statement commits by itself. Returns their ids, in the order given. To add them with
    /// your own rows, use [`transaction`](crate::transaction).
    pub async fn add(&self, events: impl IntoIterator<Item = NewEvent>) -> Result<Vec<i64>, Error> {
        let events: Vec<NewEvent> = events.into_iter().collect();
        let client = self.pool.get().await?;
        let mut ids = Vec::with_capacity(events.len());
        for batch in add::batches(&events)? {
            ids.extend(add::send(&client, &batch).await?);
        }
        metrics::events_added(ids.len());
        Ok(ids)
    }

    /// What waits and how long, the relays, and who holds which shard.
    pub async fn status(&self) -> Result<OutboxStatus, Error> {
        outbox_views::status(&self.pool.get().await?).await
    }

    /// Parked entities, by source and key, one page at a time: those after `after`, at most `limit` (50 when it is 0).
    pub async fn parked(
        &self,
        after: Option<(&str, &str)>,
        limit: usize,
    ) -> Result<Vec<ParkedEntity>, Error> {
        outbox_views::parked(&self.pool.get().await?, after, limit).await
    }

    /// Where an event is. Empty: it was delivered and not kept, dropped, or never committed.
    pub async fn trace(&self, id: i64) -> Result<Vec<EventTrace>, Error> {
        outbox_views::trace(&self.pool.get().await?, id).await
    }

    /// Ends the parking of entities of the outbox, up to 1,000 at a time. Returns those that were parked, each with the number of events
    /// that are sent again.
    pub async fn unpark(&self, entity_keys: &[&str], how: Unpark) -> Result<Vec<(String, i64)>, Error> {
        self.unpark_in(Outbox::TABLE, entity_keys, how).await
    }

    /// Like [`Outbox::unpark`], for the entities of another table: [`ParkedEntity::source`]. There is only [`Unpark::Retry`] for these.
    pub async fn unpark_in(
        &self,
        source: &str,
        entity_keys: &[&str],
        how: Unpark,
    ) -> Result<Vec<(String, i64)>, Error> {
        if entity_keys.len() > CHANGE_MAX {
            return Err(Error::Invalid(format!(
                "{} entities at a time are too many: send {CHANGE_MAX}",
                entity_keys.len()
            )));
        }
        let (how, actor) = (how.as_str(), &*self.actor);
        Parked { source, entity_keys, how, actor }.end(&self.pool).await
    }

    /// Sends delivered events again, if relays keep them; the oldest first, with their ids. Returns how many. Each statement looks at 20,000
    /// ids, puts back up to 5,000 events and commits by itself; what was put back before an error is sent.
    pub async fn replay(&self, which: &Replay) -> Result<i64, Error> {
        if *which == Replay::default() {
            return Err(Error::Invalid("a replay must name an id, a time or an entity".into()));
        }
        let client = self.pool.get().await?;
        // What is delivered again meanwhile must not be put back a second time.
        let last_id = outbox_views::last_sent_id(&client).await?;
        let (since, actor) = (which.since.map(micros), &*self.actor);
        let mut first_id = which.first_id.unwrap_or(0);
        let mut replayed = 0;
        while first_id <= last_id {
            let params: Params = &[
                (&first_id, Type::INT8),
                (&since, Type::INT8),
                (&which.entity_key, Type::TEXT),
                (&REPLAY_IDS, Type::INT4),
                (&REPLAY_PAGE, Type::INT4),
                (&actor, Type::TEXT),
            ];
            let rows = query(&client, include_str!("../../sql/operate/replay.sql"), params).await?;
            let Some(page) = rows.first() else { break };
            first_id = page.get(0);
            replayed += page.get::<_, i64>(1);
        }
        Ok(replayed)
    }
}
