//! Events that cannot be read, of which there is nothing to send: no sink gets them.

use std::collections::HashSet;

use pitwheel::engine::outbox::Event;

use crate::limit::Limit;
use crate::sink::{Outcome, Sink};

/// Sends events that can be read. One that cannot be read is refused, and what is behind it of its entity is not sent.
pub(crate) async fn send_readable(sink: &mut impl Sink, events: &[Event], limit: &Limit) -> Vec<Outcome> {
    if events.iter().all(|event| event.unreadable.is_none()) {
        return sink.send(events, limit).await;
    }
    let kept = kept_back(events);
    let to_send = events.iter().zip(&kept).filter(|(_, kept)| kept.is_none());
    let to_send: Vec<Event> = to_send.map(|(event, _)| event.clone()).collect();
    let mut sent = match &to_send[..] {
        [] => Vec::new(),
        to_send => sink.send(to_send, limit).await,
    }
    .into_iter();
    let outcome = |kept: Option<Outcome>| kept.or_else(|| sent.next());
    let none = || Outcome::Again("the sink returned no outcome".to_owned());
    kept.into_iter().map(outcome).map(|outcome| outcome.unwrap_or_else(none)).collect()
}

/// The outcome of each event that the sink must not get.
fn kept_back(events: &[Event]) -> Vec<Option<Outcome>> {
    let mut stopped: HashSet<&str> = HashSet::new();
    let kept = events.iter().map(|event| {
        let Event { entity_key, unreadable, .. } = event;
        if stopped.contains(&**entity_key) {
            return Some(Outcome::Again("an event before it cannot be read".to_owned()));
        }
        let reason = unreadable.as_ref()?;
        stopped.insert(entity_key);
        Some(Outcome::Refused(reason.clone()))
    });
    kept.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_event_stops_its_entity_only() {
        let event = |(id, key)| Event::unheld(id, key, "t", "k", None);
        let mut events = [(1, "a"), (2, "a"), (3, "b"), (4, "a")].map(event);
        events[1].unreadable = Some("why".to_owned());
        let outcomes = kept_back(&events);
        assert_eq!(outcomes[1], Some(Outcome::Refused("why".to_owned())));
        assert!(matches!(outcomes[3], Some(Outcome::Again(_))), "{outcomes:?}");
        assert_eq!((&outcomes[0], &outcomes[2]), (&None, &None));
    }
}
