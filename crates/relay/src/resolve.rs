//! What to do with a batch after it was sent: decisions without any effect.

use std::collections::HashSet;

use pitwheel::engine::outbox::Event;

use crate::sink::Outcome;

/// What to do with the events of a batch.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Resolved {
    /// The positions of those to acknowledge: of each entity, those before the first that was not sent.
    pub(crate) sent: Vec<usize>,
    /// The first event of each entity that was refused, if all before it were sent, and why.
    pub(crate) refused: Vec<(usize, String)>,
    /// The first event of each entity that is to be sent again.
    pub(crate) unsent: Vec<usize>,
    /// Why the first of these was not sent, if there is one.
    pub(crate) again: Option<String>,
}

/// Decides by the outcomes, one for each event. An event that was sent behind one that was not stays, and is sent again behind
/// it: else the receiver would never see the two in order.
pub(crate) fn resolve(events: &[Event], outcomes: Vec<Outcome>) -> Resolved {
    let mut resolved = Resolved::default();
    let mut stopped: HashSet<&str> = HashSet::new();
    for (at, (event, outcome)) in events.iter().zip(outcomes).enumerate() {
        let is_behind = !stopped.is_empty() && stopped.contains(event.entity_key.as_str());
        match outcome {
            _ if is_behind => {}
            Outcome::Sent => resolved.sent.push(at),
            Outcome::Again(reason) => {
                stopped.insert(&event.entity_key);
                resolved.unsent.push(at);
                resolved.again.get_or_insert(reason);
            }
            Outcome::Refused(reason) => {
                stopped.insert(&event.entity_key);
                resolved.refused.push((at, reason));
            }
        }
    }
    resolved
}

#[cfg(test)]
mod tests {
    use super::*;

    fn again(reason: &str) -> Outcome {
        Outcome::Again(reason.to_owned())
    }

    fn refused(reason: &str) -> Outcome {
        Outcome::Refused(reason.to_owned())
    }

    fn events(keys: &[&str]) -> Vec<Event> {
        keys.iter().zip(1..).map(|(key, id)| Event::unheld(id, key, "topic", "type", None)).collect()
    }

    #[test]
    fn only_the_sent_prefix_of_an_entity_is_acknowledged() {
        let events = events(&["a", "b", "a", "a", "b"]);
        let outcomes = vec![Outcome::Sent, Outcome::Sent, again("down"), Outcome::Sent, Outcome::Sent];
        let resolved = resolve(&events, outcomes);
        assert_eq!((resolved.sent, resolved.unsent), (vec![0, 1, 4], vec![2]));
        assert_eq!(resolved.again.as_deref(), Some("down"));
    }

    #[test]
    fn an_entity_is_parked_at_its_first_refused_event() {
        let events = events(&["a", "a", "a", "b"]);
        let outcomes = vec![Outcome::Sent, refused("too large"), refused("later"), again("down")];
        let resolved = resolve(&events, outcomes);
        assert_eq!(resolved.sent, [0]);
        assert_eq!(resolved.refused, [(1, "too large".to_owned())]);
    }

    #[test]
    fn a_refused_event_behind_an_unsent_one_waits() {
        let events = events(&["a", "a"]);
        let resolved = resolve(&events, vec![again("down"), refused("too large")]);
        assert!(resolved.refused.is_empty());
        assert!(resolved.sent.is_empty());
    }
}
