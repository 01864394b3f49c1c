//! The handle for the outbox.

use std::sync::Arc;

use crate::engine::outbox::add;
use crate::error::Error;
use crate::job::new_event::NewEvent;
use crate::metrics;
use crate::postgres::Pool;

/// The outbox: events that relays deliver, in order within each entity. Made by [`Pitwheel::outbox`](crate::Pitwheel::outbox).
#[derive(Clone)]
pub struct Outbox {
    pool: Pool,
    #[expect(dead_code, reason = "for the changes that operators make")]
    actor: Arc<str>,
}

impl Outbox {
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
}
