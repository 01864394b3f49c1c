//! What a relay logs of events that it cannot send, and when it waits, with a strategy and a sink that follow a script.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::Result;
use pitwheel::Error;
use pitwheel::engine::outbox::{Acknowledged, Batch, Event, Strategy};
use pitwheel_relay::{Limit, Outcome, Relay, Sink};
use pitwheel_testkit::Warnings;
use tokio_util::sync::CancellationToken;

/// Returns these batches one after the other, then stops the relay.
struct Script {
    batches: VecDeque<Vec<Event>>,
    /// What each acknowledgement answers.
    must_wait: bool,
    stop: CancellationToken,
}

fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(600)
}

impl Strategy for Script {
    async fn take(&mut self, _: usize) -> Result<Batch, Error> {
        let events = self.batches.pop_front().unwrap_or_else(|| {
            self.stop.cancel();
            Vec::new()
        });
        Ok(Batch { events, deadline: deadline() })
    }

    async fn acknowledge(&mut self, _: &[Event]) -> Result<Acknowledged, Error> {
        Ok(Acknowledged { lost: 0, locked: 0, refused: 0, must_wait: self.must_wait, deadline: deadline() })
    }

    async fn park(&mut self, _: &Event, _: &str) -> Result<bool, Error> {
        Ok(true)
    }

    fn postpone(&mut self, _: &Event, _: Instant) -> bool {
        true
    }

    fn holds(&self, _: &Event) -> bool {
        true
    }

    async fn release(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

/// Does what the type of an event says.
struct Obedient;

impl Sink for Obedient {
    async fn send(&mut self, events: &[Event], _: &Limit) -> Vec<Outcome> {
        let outcome = |event: &Event| match &*event.kind {
            "again" => Outcome::Again("later".to_owned()),
            "refused" => Outcome::Refused("no".to_owned()),
            _ => Outcome::Sent,
        };
        events.iter().map(outcome).collect()
    }
}

/// Runs a relay with batches of one event each, given as entity and type.
async fn run(batches: &[(&str, &str)], must_wait: bool) {
    let stop = CancellationToken::new();
    let batch = |(key, kind): &(&str, &str)| vec![Event::unheld(1, key, "orders", kind, None)];
    let script = Script { batches: batches.iter().map(batch).collect(), must_wait, stop: stop.clone() };
    Relay::new(script, Obedient).run(stop.cancelled_owned()).await;
}

#[tokio::test]
async fn an_outage_is_logged_also_after_an_entity_that_failed_was_parked() {
    let warnings = Warnings::of_this_thread();
    run(&[("a", "again"), ("b", "again"), ("b", "sent"), ("a", "refused"), ("c", "again")], false).await;
    let logged = warnings.texts();
    let begun: Vec<bool> =
        logged.iter().map(|message| message.starts_with("events cannot be sent")).collect();
    assert_eq!(begun, [true, false, true], "{logged:?}");
}

#[tokio::test]
async fn a_relay_waits_while_too_many_events_could_not_be_acknowledged() {
    let begun = Instant::now();
    run(&[("a", "sent"); 6], true).await;
    // The shortest possible waits: 25, 50, 100, 200, 400 and 800 ms.
    assert!(begun.elapsed() >= Duration::from_millis(1_500), "{:?}", begun.elapsed());
}
