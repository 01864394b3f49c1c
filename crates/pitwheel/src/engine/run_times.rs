//! When the next runs of recurring jobs are due: who settled a run knows, and need not wait for a poll.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Times that are remembered. Of more than this, the later ones are found by polling.
const TIMES_MAX: usize = 10_000;
/// Runs within so much time are claimed together, so that a thousand runs in a second cost 200 claims.
const TOGETHER: Duration = Duration::from_millis(5);

/// The next times, each once.
pub struct RunTimes {
    /// Times are counted from here.
    begin: Instant,
    /// In units of [`TOGETHER`].
    times: BTreeSet<u64>,
}

impl Default for RunTimes {
    fn default() -> RunTimes {
        RunTimes { begin: Instant::now(), times: BTreeSet::new() }
    }
}

impl RunTimes {
    /// Adds a time.
    pub fn add(&mut self, time: Instant) {
        let units = time.saturating_duration_since(self.begin).as_nanos().div_ceil(TOGETHER.as_nanos());
        self.times.insert(u64::try_from(units).unwrap_or(u64::MAX));
        if self.times.len() > TIMES_MAX {
            self.times.pop_last();
        }
    }

    /// The first of the times.
    pub fn first(&self) -> Option<Instant> {
        let units = *self.times.first()?;
        self.begin.checked_add(Duration::from_nanos(units.checked_mul(TOGETHER.as_nanos() as u64)?))
    }

    /// Forgets the times that have come. False: there were none.
    pub fn take_until(&mut self, now: Instant) -> bool {
        let mut any = false;
        while self.first().is_some_and(|first| first <= now) {
            self.times.pop_first();
            any = true;
        }
        any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_come_in_order_and_close_ones_together() {
        let mut times = RunTimes::default();
        let begin = times.begin;
        let after = |us: u64| begin + Duration::from_micros(us);
        [19_100, 10_000, 6_200, 6_300].into_iter().for_each(|us| times.add(after(us)));
        assert_eq!(times.first(), Some(after(10_000)), "never before its time");
        assert!(!times.take_until(after(9_900)));
        assert!(times.take_until(after(10_000)));
        assert_eq!(times.first(), Some(after(20_000)));
    }

    #[test]
    fn the_latest_of_too_many_times_are_forgotten() {
        let mut times = RunTimes::default();
        let begin = times.begin;
        (1..=TIMES_MAX as u32 + 5).for_each(|n| times.add(begin + TOGETHER * n));
        assert_eq!(times.times.len(), TIMES_MAX);
        assert_eq!(times.first(), Some(begin + TOGETHER));
    }
}
