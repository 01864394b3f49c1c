//! How long a failed job waits before its next attempt.

use std::time::Duration;

const FIRST: Duration = Duration::from_secs(2);
/// Longer waits would hide a recovery from the people who wait for it.
const LONGEST: Duration = Duration::from_secs(3600);

/// The wait after the given attempt (counted from 1): a random share of a span that doubles, so that jobs that failed
/// together do not come back together. `random` is between 0 and 1.
pub(crate) fn backoff(attempt: u32, random: f64) -> Duration {
    let doublings = attempt.saturating_sub(1).min(20);
    let span = FIRST.saturating_mul(1 << doublings).min(LONGEST);
    span.mul_f64(random.clamp(0.0, 1.0))
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
