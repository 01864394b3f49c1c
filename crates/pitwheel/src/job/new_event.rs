//! An event to add to the outbox.
//!
//! The SQL function `pitwheel.add_event` and the table's constraints have the same limits, but for headers; a test compares them.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::error::Error;
use crate::job::payload::{self, PayloadError};
use crate::job::trace::TraceContext;

/// A longer key is a mistake: keys are compared, and sent with every event.
const KEY_BYTES_MAX: usize = 512;
const KIND_BYTES_MAX: usize = 255;
/// Kafka's limit for names of topics.
const TOPIC_BYTES_MAX: usize = 249;
/// With key and headers, what a Kafka broker with default settings accepts.
pub(crate) const PAYLOAD_BYTES_MAX: usize = 1_000_000;
/// As JSON text. The table allows more in Postgres' own format, which is larger for some values.
const HEADERS_BYTES_MAX: usize = 16 * 1024;

/// An event to add to the outbox: what happened to an entity. Events of one entity are delivered in the order in which they were added, if the
/// transactions that add them lock the entity first.
///
/// ```
/// # use pitwheel::NewEvent;
/// # use serde_json::json;
/// let event = NewEvent::json("order-7", "orders", "order.paid", &json!({"amount": 12})).header("tenant", "acme");
/// let gone = NewEvent::tombstone("order-7", "orders", "order.deleted");
/// ```
#[derive(Debug, Clone)]
#[must_use = "a new event does nothing until it is added"]
pub struct NewEvent {
    pub(crate) entity_key: String,
    pub(crate) topic: String,
    pub(crate) kind: String,
    pub(crate) payload: Result<Option<Vec<u8>>, PayloadError>,
    pub(crate) headers: Map<String, Value>,
}

impl NewEvent {
    /// An event with these bytes as its payload.
    pub fn new(
        entity_key: impl Into<String>,
        topic: impl Into<String>,
        kind: impl Into<String>,
        payload: impl Into<Vec<u8>>,
    ) -> NewEvent {
        NewEvent { payload: Ok(Some(payload.into())), ..NewEvent::tombstone(entity_key, topic, kind) }
    }

    /// An event whose payload is this value as JSON.
    pub fn json(
        entity_key: impl Into<String>,
        topic: impl Into<String>,
        kind: impl Into<String>,
        payload: &impl Serialize,
    ) -> NewEvent {
        let payload =
            serde_json::to_vec(payload).map(Some).map_err(|error| PayloadError::NotJson(error.to_string()));
        NewEvent { payload, ..NewEvent::tombstone(entity_key, topic, kind) }
    }

    /// An event without a payload: in a compacted topic, it deletes the entity.
    pub fn tombstone(
        entity_key: impl Into<String>,
        topic: impl Into<String>,
        kind: impl Into<String>,
    ) -> NewEvent {
        NewEvent {
            entity_key: entity_key.into(),
            topic: topic.into(),
            kind: kind.into(),
            payload: Ok(None),
            headers: Map::new(),
        }
    }

    /// Adds a header.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Value>) -> NewEvent {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// Puts the event into a trace: its headers `traceparent` and `tracestate`.
    pub fn trace(self, trace: &TraceContext) -> NewEvent {
        let event = self.header("traceparent", trace.traceparent.clone());
        match &trace.tracestate {
            Some(state) => event.header("tracestate", state.clone()),
            None => event,
        }
    }

    /// Refuses what the outbox cannot store or Kafka cannot take. Every add does this before anything is sent.
    pub fn check(&self) -> Result<(), Error> {
        check_entity_key(&self.entity_key)?;
        check_topic(&self.topic)?;
        if self.kind.is_empty() || self.kind.len() > KIND_BYTES_MAX || self.kind.contains('\0') {
            return Err(Error::Invalid(format!(
                "event type `{}` has {} bytes, it may have 1 to {KIND_BYTES_MAX}, none of them NUL",
                shown(&self.kind),
                self.kind.len()
            )));
        }
        match &self.payload {
            Err(problem) => return Err(Error::Payload { what: "payload", problem: problem.clone() }),
            Ok(Some(bytes)) if bytes.len() > PAYLOAD_BYTES_MAX => {
                return Err(Error::Invalid(format!(
                    "payload has {} bytes, the limit is {PAYLOAD_BYTES_MAX}: store it elsewhere and send a reference",
                    bytes.len()
                )));
            }
            Ok(_) => {}
        }
        let headers = self.headers_json().unwrap_or_default();
        if headers.len() > HEADERS_BYTES_MAX {
            return Err(Error::Invalid(format!(
                "headers have {} bytes, the limit is {HEADERS_BYTES_MAX}",
                headers.len()
            )));
        }
        if headers.is_empty() {
            return Ok(());
        }
        // As for a payload: what a relay cannot read, it could not send.
        payload::check(&headers).map_err(|problem| Error::Invalid(format!("the object of headers {problem}")))
    }

    /// The headers as JSON text; `None`: there are none.
    pub(crate) fn headers_json(&self) -> Option<String> {
        Some(&self.headers)
            .filter(|headers| !headers.is_empty())
            .map(|headers| Value::from(headers.clone()).to_string())
    }

    /// The bytes of its payload, which is checked.
    pub(crate) fn payload(&self) -> Option<&[u8]> {
        self.payload.as_ref().ok().and_then(|payload| payload.as_deref())
    }
}

/// Checks the key of an entity.
pub(crate) fn check_entity_key(key: &str) -> Result<(), Error> {
    if key.is_empty() || key.len() > KEY_BYTES_MAX {
        return Err(Error::Invalid(format!(
            "entity key has {} bytes, it may have 1 to {KEY_BYTES_MAX}",
            key.len()
        )));
    }
    if key.contains('\0') {
        return Err(Error::Invalid("entity key holds a NUL character, which Postgres cannot store".into()));
    }
    Ok(())
}

fn check_topic(topic: &str) -> Result<(), Error> {
    let legal = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if topic.is_empty()
        || topic.len() > TOPIC_BYTES_MAX
        || !topic.chars().all(legal)
        || topic == "."
        || topic == ".."
    {
        return Err(Error::Invalid(format!(
            "topic `{}` is not legal for Kafka: 1 to {TOPIC_BYTES_MAX} letters, digits and . _ -",
            shown(topic)
        )));
    }
    Ok(())
}

fn shown(text: &str) -> String {
    text.chars().take(80).collect::<String>().escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(event: &NewEvent) -> String {
        event.check().err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn what_kafka_cannot_take_is_refused() {
        let event = |key: &str, topic: &str, kind: &str| NewEvent::new(key, topic, kind, "x");
        assert_eq!(refused(&event("order-7591528555", "orders", "paid")), "");
        assert_eq!(refused(&event("🦀", "a.b_c-d", "💸")), "");
        assert!(refused(&event("", "orders", "paid")).contains("0 bytes"));
        assert!(refused(&event(&"x".repeat(513), "orders", "paid")).contains("513 bytes"));
        assert!(refused(&event("a\0b", "orders", "paid")).contains("NUL"));
        for topic in ["", ".", "..", "a b", "ä", "a/b", &"x".repeat(250)] {
            assert!(refused(&event("k", topic, "paid")).contains("not legal for Kafka"), "{topic}");
        }
        assert!(refused(&event("k", "orders", "")).contains("event type"));
        assert!(refused(&event("k", "orders", "a\0b")).contains("NUL"));
    }

    #[test]
    fn large_payloads_and_headers_are_refused() {
        let payload = |bytes: usize| NewEvent::new("k", "orders", "paid", vec![0; bytes]);
        assert_eq!(refused(&payload(PAYLOAD_BYTES_MAX)), "");
        assert!(refused(&payload(PAYLOAD_BYTES_MAX + 1)).contains("the limit is 1000000"));
        assert!(refused(&payload(1).header("h", "x".repeat(HEADERS_BYTES_MAX))).contains("headers have"));
        assert!(refused(&payload(1).header("h", "a\0b")).contains("NUL"));
        assert_eq!(refused(&payload(1).header("h", "a\\u0000b")), "", "a backslash is not a NUL");
        let nested = |levels: usize| (1..levels).fold(json!({}), |inner, _| json!([inner]));
        assert_eq!(refused(&payload(1).header("h", nested(63))), "");
        assert!(
            refused(&payload(1).header("h", nested(64))).contains("headers is nested deeper than 64 levels")
        );
    }
}
