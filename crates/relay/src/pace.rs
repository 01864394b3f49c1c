//! How long to wait between two reads of the outbox.

use std::time::Duration;

/// After the first read that found nothing. Such a read takes about half a millisecond.
const SHORTEST: Duration = Duration::from_millis(1);
/// While nothing happens: an event after a silence waits for half of this on average.
const LONGEST: Duration = Duration::from_millis(50);

/// The pause before the next read: none after one that found events, because what was committed while they were sent waits already; up to
/// 50 ms while there are none.
#[derive(Debug)]
pub(crate) struct Pace {
    pause: Duration,
}

impl Pace {
    pub(crate) fn new() -> Pace {
        Pace { pause: SHORTEST }
    }

    /// The pause after a read that returned so many events.
    pub(crate) fn after(&mut self, taken: usize) -> Duration {
        if taken > 0 {
            self.pause = SHORTEST;
            return Duration::ZERO;
        }
        let pause = self.pause;
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
        let pauses: Vec<u128> = (0..8).map(|_| pace.after(0).as_millis()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 50, 50]);
    }

    #[test]
    fn events_make_it_short_again() {
        let mut pace = Pace::new();
        for _ in 0..8 {
            let _ = pace.after(0);
        }
        assert_eq!(pace.after(3), Duration::ZERO);
        assert_eq!(pace.after(0), SHORTEST);
    }
}
