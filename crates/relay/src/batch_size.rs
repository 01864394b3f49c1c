//! How many events to take at a time.

use pitwheel::engine::outbox::Event;

/// By default: enough to fill the requests to Kafka, and some milliseconds of work.
const EVENTS: usize = 2_000;
/// A batch is held in memory twice, here and by the sink.
const BYTES_MAX: usize = 16 * 1024 * 1024;
/// Even of the largest events.
const EVENTS_MIN: usize = 8;

/// The size of the next batch: fewer events while they are large.
#[derive(Debug)]
pub(crate) struct BatchSize {
    most: usize,
    limit: usize,
}

impl Default for BatchSize {
    fn default() -> BatchSize {
        BatchSize::new(EVENTS)
    }
}

impl BatchSize {
    pub(crate) fn new(events: usize) -> BatchSize {
        let most = events.max(1);
        BatchSize { most, limit: most }
    }

    /// How many events to take next.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Learns from a batch that is not empty.
    pub(crate) fn taken(&mut self, events: &[Event]) {
        let bytes: usize = events.iter().map(|event| event.payload.as_ref().map_or(0, Vec::len)).sum();
        let average = bytes / events.len().max(1) + 1;
        self.limit = (BYTES_MAX / average).max(EVENTS_MIN).min(self.most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_events_make_small_batches() {
        let events = |bytes: usize| vec![Event::unheld(1, "a", "t", "k", Some(vec![0; bytes])); 3];
        let mut size = BatchSize::default();
        assert_eq!(size.limit(), 2_000);
        size.taken(&events(1_000_000));
        assert_eq!(size.limit(), 16);
        size.taken(&events(100));
        assert_eq!(size.limit(), 2_000);
        let mut size = BatchSize::new(5);
        size.taken(&events(4_000_000));
        assert_eq!(size.limit(), 5);
    }
}
