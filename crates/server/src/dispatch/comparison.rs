//! When a stream is compared with the database: its jobs may have been settled through other nodes.

use std::time::{Duration, Instant};

/// The time between two comparisons of a stream whose slots are all taken, and of one where the last comparison freed a slot.
pub(crate) const EVERY_MIN: Duration = Duration::from_secs(1);
/// A comparison that frees nothing doubles the time until the next one, up to this: jobs may run for hours, and a node may have
/// thousands of streams.
const EVERY_MAX: Duration = Duration::from_secs(16);

/// When to compare one stream. Other nodes send hints for what they settle, so comparisons only find what hints have lost.
pub(crate) struct Comparison {
    next: Instant,
    every: Duration,
    /// Whether a slot was freed since the last comparison.
    freed: bool,
}

impl Comparison {
    pub(crate) fn new(now: Instant) -> Comparison {
        Comparison { next: now + EVERY_MIN, every: EVERY_MIN, freed: false }
    }

    /// A slot was freed.
    pub(crate) fn freed(&mut self) {
        self.freed = true;
    }

    /// Whether it is time. A stream that is full and had no slot freed for a while may be full of settled jobs.
    pub(crate) fn is_due(&mut self, is_full: bool, now: Instant) -> bool {
        let stuck = is_full && !std::mem::take(&mut self.freed);
        let due = stuck || now >= self.next;
        if due {
            self.next = now + self.every;
            self.every = (self.every * 2).min(EVERY_MAX);
        }
        due
    }

    /// The comparison found jobs that were settled through another node: more are likely.
    pub(crate) fn found_settled(&mut self, now: Instant) {
        (self.next, self.every) = (now + EVERY_MIN, EVERY_MIN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_that_is_not_full_is_compared_too_and_less_often_if_nothing_is_found() {
        let begun = Instant::now();
        let mut comparison = Comparison::new(begun);
        let due: Vec<u64> =
            (0..40).filter(|at| comparison.is_due(false, begun + Duration::from_secs(*at))).collect();
        assert_eq!(due, [1, 2, 4, 8, 16, 32]);
        comparison.found_settled(begun + Duration::from_secs(40));
        assert!(comparison.is_due(false, begun + Duration::from_secs(41)));
    }

    #[test]
    fn a_full_stream_is_compared_each_time_unless_slots_are_freed() {
        let begun = Instant::now();
        let mut comparison = Comparison::new(begun);
        assert!(comparison.is_due(true, begun));
        comparison.freed();
        assert!(!comparison.is_due(true, begun));
        assert!(comparison.is_due(true, begun));
    }
}
