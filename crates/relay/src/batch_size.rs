//! How many events to take at a time.

use pitwheel::engine::outbox::Event;

/// By default: enough to fill the requests to Kafka, and some milliseconds of work.
const EVENTS: usize = 2_000;
/// A batch is held in memory twice, here and by the sink.
const BYTES_MAX: usize = 16 * 1024 * 1024;
/// Even of the largest events.
const EVENTS_MIN: usize = 8;

/// The size of the next batch: fewer events while they are large, or while a read fails.
#[derive(Debug)]
pub(crate) struct BatchSize {
    most: usize,
    limit: usize,
    /// Half of what could not be read last, and an eighth more with each batch that was.
    ceiling: usize,
}

impl Default for BatchSize {
    fn default() -> BatchSize {
        BatchSize::new(EVENTS)
    }
}

impl BatchSize {
    pub(crate) fn new(events: usize) -> BatchSize {
        let most = events.max(1);
        BatchSize { most, limit: most, ceiling: most }
    }

    /// How many events to take next.
    pub(crate) fn limit(&self) -> usize {
        self.limit.min(self.ceiling)
    }

    /// The batch could not be read: perhaps it is too large for the time that a statement has.
    pub(crate) fn failed(&mut self) {
        self.ceiling = (self.limit() / 2).max(1);
    }

    /// Learns from a batch that is not empty.
    pub(crate) fn taken(&mut self, events: &[Event]) {
        let bytes: usize = events.iter().map(|event| event.payload.as_ref().map_or(0, Vec::len)).sum();
        let average = bytes / events.len().max(1) + 1;
        self.limit = (BYTES_MAX / average).max(EVENTS_MIN).min(self.most);
        self.ceiling = (self.ceiling + self.ceiling / 8 + 1).min(self.most);
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

    #[test]
    fn a_read_that_fails_is_repeated_with_fewer_events() {
        let events = vec![Event::unheld(1, "a", "t", "k", None); 3];
        let mut size = BatchSize::default();
        for expected in [1_000, 500, 250] {
            size.failed();
            assert_eq!(size.limit(), expected);
        }
        size.taken(&events);
        assert_eq!(size.limit(), 282, "it is not the size that failed before");
        (0..20).for_each(|_| size.failed());
        assert_eq!(size.limit(), 1);
        (0..100).for_each(|_| size.taken(&events));
        assert_eq!(size.limit(), 2_000);
    }
}
