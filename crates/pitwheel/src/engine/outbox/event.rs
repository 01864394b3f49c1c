//! Events as relays read them.

use std::error::Error as _;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use serde_json::{Map, Value};
use tokio_postgres::Row;

use crate::error::Error;
use crate::postgres::Ctid;

/// One row of an outbox, held by the relay that took it.
#[derive(Debug, Clone)]
pub struct Event {
    /// Its id. Events of an entity are sent in the order of their ids.
    pub id: i64,
    /// The entity that it is about.
    pub entity_key: String,
    /// The topic that it is sent to.
    pub topic: String,
    /// What happened: the column `type`.
    pub kind: String,
    /// The bytes to send. `None`: a tombstone.
    pub payload: Option<Vec<u8>>,
    /// More headers.
    pub headers: Option<Map<String, Value>>,
    /// Why it can never be sent as it is: its headers cannot be read. A relay gives it to no sink, and parks its entity with this reason.
    pub unreadable: Option<String>,
    /// When it was written, by the database's clock.
    pub created_at: SystemTime,
    pub(crate) place: Place,
}

/// Where an event is, and the lease under which it was read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Place {
    pub(crate) shard: i16,
    pub(crate) lease: Arc<str>,
    pub(crate) ctid: Ctid,
}

impl Event {
    /// An event that is in no table and that no relay holds: to try a sink.
    pub fn unheld(id: i64, entity_key: &str, topic: &str, kind: &str, payload: Option<Vec<u8>>) -> Event {
        Event {
            id,
            entity_key: entity_key.to_owned(),
            topic: topic.to_owned(),
            kind: kind.to_owned(),
            payload,
            headers: None,
            unreadable: None,
            created_at: SystemTime::now(),
            place: Place::default(),
        }
    }
}

/// Headers, and why they cannot be read.
type Headers = (Option<Map<String, Value>>, Option<String>);

/// The headers of an event, or why they cannot be read: Postgres stores numbers and a depth of nesting that our parser refuses. That is
/// a matter of this event, and must not end the read of the others.
pub(super) fn headers(row: &Row, at: usize) -> Result<Headers, Error> {
    match row.try_get(at) {
        Ok(Some(Value::Object(headers))) => Ok((Some(headers), None)),
        Ok(_) => Ok((None, None)),
        Err(error) => match error.source().and_then(|cause| cause.downcast_ref::<serde_json::Error>()) {
            Some(problem) => {
                let what =
                    format!("its headers cannot be read ({problem}): change them and retry, or skip it");
                Ok((None, Some(what)))
            }
            None => Err(error.into()),
        },
    }
}

/// What a relay took. Events of one entity are in the order of their ids.
#[derive(Debug, Clone)]
pub struct Batch {
    /// The events.
    pub events: Vec<Event>,
    /// Nothing may be sent after this, unless an acknowledgement moved it on: the end of the lease with a margin.
    pub deadline: Instant,
}

/// The result of an acknowledgement.
#[derive(Debug, Clone, Copy)]
#[must_use = "lost events are sent again by another relay"]
pub struct Acknowledged {
    /// How many of the events were not held any more. Another relay sends them again.
    pub lost: usize,
    /// How many were left because another transaction has locked their row, or one before it of their entity. They are taken again.
    pub locked: usize,
    /// How many were left because Postgres refuses to delete or mark a row of their entity. They are taken again.
    pub refused: usize,
    /// Some of those that were left would be taken again at once, because too many entities are left out already: wait before the next take.
    pub must_wait: bool,
    /// The new deadline of all that is held.
    pub deadline: Instant,
}
