//! How fast the slots of a queue take jobs, and how many to claim ahead.

use std::time::Duration;

/// Jobs are claimed ahead if they will start within this time: about what a claim takes on a busy database. What is claimed ahead
/// waits here while other workers might run it, so the time must be short.
const AHEAD: Duration = Duration::from_millis(30);
/// The weight of a new duration in the average, as one part in this many.
const WEIGHT: f64 = 16.0;

/// The average duration of the attempts of a queue.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pace {
    seconds: Option<f64>,
}

impl Pace {
    /// An attempt took this long.
    pub(crate) fn record(&mut self, took: Duration) {
        let took = took.as_secs_f64();
        self.seconds = Some(self.seconds.map_or(took, |average| average + (took - average) / WEIGHT));
    }

    /// How many jobs so many slots will start within [`AHEAD`], at most `max`. Zero before the first attempt has ended.
    pub(crate) fn jobs_ahead(self, slots: usize, max: usize) -> usize {
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
