//! Which events are sent to Kafka together.
//!
//! Each partition gets one request, and the next one after its answer. With two on their way, a broker that refuses the first
//! may still take the second, and events of one entity would overtake each other: brokers check the sequence numbers, but not
//! as long as they know nothing of the producer.

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
    let sizes = messages.iter().map(|message| message.bytes + MESSAGE_OVERHEAD);
    let ends = sizes.scan(0, |total, size| {
        *total += size;
        Some(*total)
    });
    ends.take(MESSAGES_MAX).take_while(|end| *end <= bytes_max).count().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(sizes: &[usize]) -> Vec<usize> {
        let events: Vec<Event> =
            sizes.iter().map(|size| Event::unheld(1, "", "t", "k", Some(vec![0; *size]))).collect();
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
}
