//! The headers of an event, for every sink.

use jiff::Timestamp;
use pitwheel::engine::outbox::Event;
use serde_json::Value;

/// How the headers of an event are named.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Format {
    /// Short names: `id`, `type`, `entity`, `created`.
    #[default]
    Plain,
    /// CloudEvents 1.0 in binary mode.
    CloudEvents {
        /// The attribute `source` of every event, a URI.
        source: String,
    },
}

/// One header.
pub(crate) type Header = (String, String);

impl Format {
    /// The headers of an event: those of the relay, whose names start with `prefix` and end as the format says, then those of
    /// the event itself. Of two with the same name, that of the relay remains.
    pub(crate) fn headers(&self, event: &Event, prefix: Prefix) -> Vec<Header> {
        let mut headers = match self {
            Format::Plain => plain(event, prefix.plain),
            Format::CloudEvents { source } => cloud_event(event, source, prefix.cloud_events),
        };
        let ours = headers.len();
        for (name, value) in event.headers.iter().flatten() {
            if headers[..ours].iter().any(|(taken, _)| taken == name) {
                continue;
            }
            let value = match value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            headers.push((name.clone(), value));
        }
        headers
    }
}

/// What the names of the relay's headers start with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Prefix {
    plain: &'static str,
    cloud_events: &'static str,
}

/// In Kafka.
#[cfg(feature = "kafka")]
pub(crate) const KAFKA: Prefix = Prefix { plain: "", cloud_events: "ce_" };
/// In HTTP.
pub(crate) const HTTP: Prefix = Prefix { plain: "pitwheel-", cloud_events: "ce-" };

fn plain(event: &Event, prefix: &str) -> Vec<Header> {
    let header = |name: &str, value: String| (format!("{prefix}{name}"), value);
    vec![
        header("id", event.id.to_string()),
        header("type", event.kind.clone()),
        header("entity", event.entity_key.clone()),
        header("created", created(event)),
    ]
}

fn cloud_event(event: &Event, source: &str, prefix: &str) -> Vec<Header> {
    let header = |name: &str, value: &str| (format!("{prefix}{name}"), value.to_owned());
    vec![
        header("specversion", "1.0"),
        header("id", &event.id.to_string()),
        header("source", source),
        header("type", &event.kind),
        header("subject", &event.entity_key),
        header("time", &created(event)),
        header("partitionkey", &event.entity_key),
    ]
}

/// When the event was written, in RFC 3339.
pub(crate) fn created(event: &Event) -> String {
    Timestamp::try_from(event.created_at).map_or_else(|_| String::new(), |time| time.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event() -> Event {
        let mut event = Event::unheld(7, "order-1", "orders", "placed", Some(b"{}".to_vec()));
        let headers = json!({ "traceparent": "00-1", "attempt": 2, "id": "mine" });
        event.headers = headers.as_object().cloned();
        event
    }

    fn value<'a>(headers: &'a [Header], name: &str) -> Vec<&'a str> {
        headers.iter().filter(|(other, _)| other == name).map(|(_, value)| value.as_str()).collect()
    }

    #[test]
    fn own_headers_go_along_and_cannot_replace_those_of_the_relay() {
        let headers = Format::Plain.headers(&event(), Prefix { plain: "", cloud_events: "" });
        assert_eq!(value(&headers, "id"), ["7"]);
        assert_eq!(value(&headers, "type"), ["placed"]);
        assert_eq!(value(&headers, "entity"), ["order-1"]);
        assert_eq!(value(&headers, "created").len(), 1);
        assert_eq!(value(&headers, "traceparent"), ["00-1"]);
        assert_eq!(value(&headers, "attempt"), ["2"]);
    }

    #[test]
    fn cloud_events_have_their_required_attributes() {
        let format = Format::CloudEvents { source: "/shop".to_owned() };
        let headers = format.headers(&event(), HTTP);
        for (name, expected) in [
            ("specversion", "1.0"),
            ("id", "7"),
            ("source", "/shop"),
            ("type", "placed"),
            ("subject", "order-1"),
        ] {
            assert_eq!(value(&headers, &format!("ce-{name}")), [expected], "{name}");
        }
    }
}
