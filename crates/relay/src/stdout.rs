//! Events on standard output: one JSON object per line.

use pitwheel::engine::outbox::Event;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use crate::limit::Limit;
use crate::message::created;
use crate::sink::{Outcome, Sink};

/// Prints events to standard output, one JSON object per line.
#[derive(Debug)]
pub struct Stdout {
    stdout: tokio::io::Stdout,
}

impl Stdout {
    /// The standard output of this process.
    pub fn new() -> Stdout {
        Stdout { stdout: tokio::io::stdout() }
    }
}

impl Default for Stdout {
    fn default() -> Stdout {
        Stdout::new()
    }
}

impl Sink for Stdout {
    async fn send(&mut self, events: &[Event], limit: &Limit) -> Vec<Outcome> {
        let again = |reason: &str| vec![Outcome::Again(reason.to_owned()); events.len()];
        if limit.is_reached() {
            return again("the relay stops");
        }
        let lines: String = events.iter().map(|event| format!("{}\n", line(event))).collect();
        let written = async {
            self.stdout.write_all(lines.as_bytes()).await?;
            self.stdout.flush().await
        };
        match written.await {
            Ok(()) => vec![Outcome::Sent; events.len()],
            Err(error) => again(&format!("standard output cannot be written: {error}")),
        }
    }
}

fn line(event: &Event) -> Value {
    let mut line = json!({
        "id": event.id, "topic": event.topic, "type": event.kind, "entity": event.entity_key,
        "created": created(event), "payload": event.payload.as_deref().map(payload),
    });
    if let Some(headers) = &event.headers {
        line["headers"] = Value::Object(headers.clone());
    }
    line
}

/// JSON as it is, other text as a string. Of other bytes, only the number is shown.
fn payload(bytes: &[u8]) -> Value {
    let text = || std::str::from_utf8(bytes).map(Value::from);
    serde_json::from_slice(bytes).or_else(|_| text()).unwrap_or_else(|_| json!({ "bytes": bytes.len() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_payload_makes_a_line() {
        let shown = |payload: Option<&[u8]>| {
            line(&Event::unheld(1, "a", "t", "k", payload.map(<[u8]>::to_vec)))["payload"].clone()
        };
        assert_eq!(shown(Some(br#"{"a":1}"#)), json!({ "a": 1 }));
        assert_eq!(shown(Some("né\u{1f600}".as_bytes())), json!("né\u{1f600}"));
        assert_eq!(shown(Some(&[0xff, 0x00])), json!({ "bytes": 2 }));
        assert_eq!(shown(None), Value::Null);
    }
}
