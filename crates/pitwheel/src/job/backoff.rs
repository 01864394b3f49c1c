//! How long to wait after a failure.

use std::time::Duration;

/// Between attempts of a job. A longer maximum would hide a recovery from the people who wait for it.
const RETRY: Backoff = Backoff { first: Duration::from_secs(2), longest: Duration::from_secs(3600) };

/// A span that doubles with each failure, up to a maximum.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Backoff {
    /// After the first failure.
    pub(crate) first: Duration,
    /// The maximum.
    pub(crate) longest: Duration,
}

impl Backoff {
    /// The span after this many failures, counted from 1.
    pub(crate) fn span(self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(20);
        self.first.saturating_mul(1 << doublings).min(self.longest)
    }
}

/// The delay after an attempt of a job, counted from 1: a random share of the span, so that jobs that failed together do not
/// come back together. `random` is between 0 and 1.
pub(crate) fn backoff(attempt: u32, random: f64) -> Duration {
    RETRY.span(attempt).mul_f64(random.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_span_doubles_up_to_its_cap() {
        let spans: Vec<u64> = [1, 2, 3, 11, 12, 1000, u32::MAX].map(|n| backoff(n, 1.0).as_secs()).to_vec();
        assert_eq!(spans, [2, 4, 8, 2048, 3600, 3600, 3600]);
    }

    #[test]
    fn the_wait_is_any_share_of_the_span() {
        assert_eq!(backoff(3, 0.0), Duration::ZERO);
        assert_eq!(backoff(3, 0.25), Duration::from_secs(2));
    }
}
