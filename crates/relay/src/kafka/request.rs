//! Which events are sent to Kafka together.
//!
//! Each partition gets one request, and the next one after its answer. With two on their way, a broker that refuses the first
//! may still take the second, and events of one entity would overtake each other: brokers check the sequence numbers, but not
//! as long as they know nothing of the producer.
//!
//! For the same reason, the events of one entity in a request have one topic: of two topics, the leader of one may be away.

use std::collections::HashMap;

use pitwheel::engine::outbox::Event;

use crate::message::Header;

/// The most messages of a request.
pub(super) const MESSAGES_MAX: usize = 10_000;
/// The most bytes of a request, unless a single message has more.
pub(super) const BYTES_MAX: usize = 1_000_000;
/// What a message needs in a request, beside key, payload and headers: lengths, time, offset.
const MESSAGE_OVERHEAD: usize = 48;

/// An event as a message.
#[derive(Debug)]
pub(super) struct Message<'a> {
    pub(super) event: &'a Event,
    pub(super) headers: Vec<Header>,
    /// Of key, payload and headers.
    pub(super) bytes: usize,
}

impl<'a> Message<'a> {
    pub(super) fn new(event: &'a Event, headers: Vec<Header>) -> Message<'a> {
        let header_bytes: usize = headers.iter().map(|(name, value)| name.len() + value.len() + 10).sum();
        let bytes = event.entity_key.len() + event.payload.as_ref().map_or(0, Vec::len) + header_bytes;
        Message { event, headers, bytes }
    }
}

/// How many of the messages make the next request. At least one.
pub(super) fn request_len(messages: &[Message<'_>], bytes_max: usize) -> usize {
    let mut bytes = 0;
    let mut topics: HashMap<&str, &str> = HashMap::new();
    let fitting = messages.iter().take(MESSAGES_MAX).take_while(|message| {
        bytes += message.bytes + MESSAGE_OVERHEAD;
        let Event { entity_key, topic, .. } = message.event;
        bytes <= bytes_max && *topics.entry(entity_key).or_insert(topic) == topic
    });
    fitting.count().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(sizes: &[usize]) -> Vec<usize> {
        requests_of(sizes.iter().map(|size| Event::unheld(1, "", "t", "k", Some(vec![0; *size]))).collect())
    }

    fn requests_of(events: Vec<Event>) -> Vec<usize> {
        let messages: Vec<Message<'_>> = events.iter().map(|event| Message::new(event, Vec::new())).collect();
        let (mut requests, mut rest) = (Vec::new(), messages.as_slice());
        while !rest.is_empty() {
            let count = request_len(rest, 1_000);
            requests.push(count);
            rest = &rest[count..];
        }
        requests
    }

    #[test]
    fn a_request_holds_what_fits() {
        assert_eq!(requests(&[400, 400, 400]), [2, 1]);
        assert_eq!(requests(&[5_000, 1, 5_000, 5_000]), [1, 1, 1, 1]);
        assert_eq!(requests(&[952, 0]), [1, 1]);
        assert_eq!(requests(&[904, 0]), [2]);
    }
    #[test]
    fn an_entity_has_one_topic_in_a_request() {
        let event = |(key, topic): &(&str, &str)| Event::unheld(1, key, topic, "k", None);
        let of = |events: &[(&str, &str)]| requests_of(events.iter().map(event).collect());
        assert_eq!(of(&[("a", "one"), ("b", "two"), ("a", "one"), ("a", "two"), ("b", "two")]), [3, 2]);
        assert_eq!(of(&[("a", "one"), ("a", "two"), ("a", "one")]), [1, 1, 1]);
    }
}
