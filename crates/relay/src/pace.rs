//! How long to wait between two reads of the outbox.

use std::time::Duration;

/// While events flow. A read of an empty outbox takes about half a millisecond.
const SHORTEST: Duration = Duration::from_millis(1);
/// While nothing happens: an event after a silence waits for half of this on average.
const LONGEST: Duration = Duration::from_millis(50);

/// The pause before the next read: none after a full batch, 1 ms while events flow, up to 50 ms while there are none.
#[derive(Debug)]
pub(crate) struct Pace {
    pause: Duration,
}

impl Pace {
    pub(crate) fn new() -> Pace {
        Pace { pause: SHORTEST }
    }

    /// The pause after a read that returned `taken` of at most `limit` events.
    pub(crate) fn after(&mut self, taken: usize, limit: usize) -> Duration {
        if taken >= limit {
            self.pause = SHORTEST;
            return Duration::ZERO;
        }
        let pause = if taken > 0 { SHORTEST } else { self.pause };
        self.pause = (pause * 2).min(LONGEST);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_grows_while_the_outbox_is_empty() {
        let mut pace = Pace::new();
        let pauses: Vec<u128> = (0..8).map(|_| pace.after(0, 10).as_millis()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 50, 50]);
    }

    #[test]
    fn events_make_it_short_again() {
        let mut pace = Pace::new();
        for _ in 0..8 {
            let _ = pace.after(0, 10);
        }
        assert_eq!(pace.after(10, 10), Duration::ZERO);
        assert_eq!(pace.after(3, 10), SHORTEST);
        assert_eq!(pace.after(0, 10), 2 * SHORTEST);
    }
}
