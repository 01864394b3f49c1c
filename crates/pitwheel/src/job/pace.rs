//! How fast slots take jobs, and how many to claim ahead.

use std::time::Duration;

use crate::job::limits::CLAIM_MAX;

/// Jobs are claimed ahead if they will start within this time: about what a claim takes on a busy database. What is claimed ahead
/// waits here while other workers might run it, so the time must be short.
const AHEAD: Duration = Duration::from_millis(30);
/// The weight of a new duration in the average, as one part in this many.
const WEIGHT: f64 = 16.0;
/// A job that was claimed ahead and has not started after this time is released: the jobs before it take longer than expected, and
/// another worker may be free.
pub const AHEAD_MAX: Duration = Duration::from_secs(1);

/// The average duration of the attempts in a number of slots, and how many jobs to claim for them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pace {
    seconds: Option<f64>,
}

impl Pace {
    /// An attempt took this long.
    pub fn record(&mut self, took: Duration) {
        let took = took.as_secs_f64();
        self.seconds = Some(self.seconds.map_or(took, |average| average + (took - average) / WEIGHT));
    }

    /// How many jobs to claim: one for each of the `free` slots, and those that will start soon, less the `expected` ones, which are
    /// claimed or are being claimed. Jobs ahead are claimed in large batches, when half of them have started.
    pub fn wanted(self, slots: usize, free: usize, expected: usize) -> usize {
        let ahead_max = self.jobs_ahead(slots, CLAIM_MAX);
        let wanted = (free + ahead_max).saturating_sub(expected);
        if expected >= free && wanted < ahead_max.div_ceil(2) { 0 } else { wanted }
    }

    /// How many jobs so many slots will start within [`AHEAD`], at most `max`. Zero before the first attempt has ended.
    fn jobs_ahead(self, slots: usize, max: usize) -> usize {
        let Some(seconds) = self.seconds else { return 0 };
        let jobs = slots as f64 * AHEAD.as_secs_f64() / seconds.max(f64::MIN_POSITIVE);
        if jobs >= max as f64 { max } else { jobs as usize }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(took: Duration) -> Pace {
        let mut pace = Pace::default();
        (0..100).for_each(|_| pace.record(took));
        pace
    }

    #[test]
    fn jobs_ahead_are_those_that_start_within_tens_of_milliseconds() {
        assert_eq!(Pace::default().jobs_ahead(20, 500), 0);
        assert_eq!(pace(Duration::from_millis(10)).jobs_ahead(20, 500), 60);
        assert_eq!(pace(Duration::from_secs(10)).jobs_ahead(20, 500), 0);
        assert_eq!(pace(Duration::ZERO).jobs_ahead(20, 500), 500);
    }

    #[test]
    fn the_pace_follows_a_change() {
        let mut pace = pace(Duration::from_millis(1));
        (0..100).for_each(|_| pace.record(Duration::from_secs(1)));
        assert_eq!(pace.jobs_ahead(20, 500), 0);
    }
}
