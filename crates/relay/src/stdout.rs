//! Events on standard output: one JSON object per line.

use std::io::{self, Write};

use pitwheel::engine::outbox::Event;
use serde_json::{Value, json};
use tokio::task::{JoinHandle, spawn_blocking};

use crate::limit::Limit;
use crate::message::created;
use crate::sink::{Outcome, Sink};

/// Prints events to standard output, one JSON object per line.
///
/// While it is not read, events are not sent; the relay gives up at its limit as with any sink.
#[derive(Debug)]
pub struct Stdout {
    write: fn(&[u8]) -> io::Result<()>,
    /// A write that was given up: it cannot be ended, and the next one waits for it, so that lines stay whole.
    writing: Option<JoinHandle<io::Result<()>>>,
}

impl Stdout {
    /// The standard output of this process.
    pub fn new() -> Stdout {
        Stdout { write, writing: None }
    }

    async fn write(&mut self, lines: String) -> io::Result<()> {
        if let Some(before) = &mut self.writing {
            // Its events were not acknowledged, so its result does not matter.
            let _ = before.await;
        }
        let write = self.write;
        let written = self.writing.insert(spawn_blocking(move || write(lines.as_bytes()))).await;
        self.writing = None;
        written?
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
        let written = tokio::select! {
            written = self.write(lines) => written,
            () = limit.give_up() => return again("standard output is not read"),
        };
        match written {
            Ok(()) => vec![Outcome::Sent; events.len()],
            Err(error) => again(&format!("standard output cannot be written: {error}")),
        }
    }
}

fn write(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()
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
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Mutex, PoisonError};
    use std::time::{Duration, Instant};

    use tokio_util::sync::CancellationToken;

    use super::*;

    static PIPE: Mutex<Vec<u8>> = Mutex::new(Vec::new());
    static IS_READ: AtomicBool = AtomicBool::new(false);

    fn write_to_pipe(bytes: &[u8]) -> io::Result<()> {
        while !IS_READ.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        PIPE.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(())
    }

    #[tokio::test]
    async fn a_full_pipe_is_given_up_and_lines_stay_whole() {
        let mut stdout = Stdout { write: write_to_pipe, writing: None };
        let limit = |span| Limit::new(Instant::now() + span, CancellationToken::new());
        let event = [Event::unheld(1, "a", "t", "k", None)];
        for _ in 0..2 {
            let outcomes = stdout.send(&event, &limit(Duration::from_millis(50))).await;
            assert!(matches!(outcomes[..], [Outcome::Again(_)]), "{outcomes:?}");
        }
        IS_READ.store(true, Ordering::Relaxed);
        assert_eq!(stdout.send(&event, &limit(Duration::from_secs(20))).await, [Outcome::Sent]);
        let written = PIPE.lock().unwrap_or_else(PoisonError::into_inner).clone();
        assert_eq!(String::from_utf8_lossy(&written), format!("{}\n", line(&event[0])).repeat(2));
    }

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
