//! When a source is fetched next, and why then. Pure functions.

use std::time::Duration;

/// The longest time that is waited for, whatever a server asks for. Jitter is added to it.
pub const WAIT_MAX: Duration = Duration::from_secs(24 * 3600);
/// The shortest time between two fetches.
pub const WAIT_MIN: Duration = Duration::from_secs(60);
/// The time between two fetches of a source whose hub pushes its articles: the fetch is only the safety net.
pub const WAIT_PUSHED: Duration = Duration::from_secs(12 * 3600);
/// Waits are longer by a random part, so that sources that were added together spread out.
const JITTER: f64 = 0.1;
/// Sources of a host that asked for a pause spread out over this time after it.
const PAUSE_JITTER: Duration = Duration::from_secs(60);
/// A failing source is tried again after its interval at the latest after this many doublings.
const DOUBLINGS_MAX: u32 = 16;

/// When to fetch next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextFetch {
    /// How long from now.
    pub wait: Duration,
    /// Why the source is fetched at that time, for people.
    pub reason: String,
}

/// What a source and its server asked for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Asked {
    /// The interval of the source.
    pub interval: Duration,
    /// How long the response is fresh.
    pub max_age: Option<Duration>,
    /// The `ttl` of the document.
    pub ttl: Option<Duration>,
    /// How long the server wants to be left alone.
    pub retry_after: Option<Duration>,
    /// Whether a hub pushes the articles of the source.
    pub pushed: bool,
}

/// After a fetch that succeeded: the longest of what the source and its server ask for, within bounds. `random` is between 0
/// and 1.
pub fn after_success(asked: &Asked, random: f64) -> NextFetch {
    let waits = [
        (Some(asked.interval), "the interval of the source"),
        (asked.max_age, "the server asks for it (Cache-Control)"),
        (asked.ttl, "the document asks for it (ttl)"),
        (asked.retry_after, "the server asks for it (Retry-After)"),
        (asked.pushed.then_some(WAIT_PUSHED), "a hub pushes new articles"),
    ];
    let (mut wait, mut reason) = (Duration::ZERO, "");
    for (asked, why) in waits {
        if let Some(asked) = asked.filter(|asked| asked.min(&WAIT_MAX) > &wait) {
            (wait, reason) = (asked.min(WAIT_MAX), why);
        }
    }
    NextFetch { wait: jittered(wait.max(WAIT_MIN), random), reason: reason.to_owned() }
}

/// After a fetch that failed, `failures` times in a row: one minute, doubled with each failure, up to a day; and not before the
/// server allows it.
pub fn after_failure(asked: &Asked, failures: u32, random: f64) -> NextFetch {
    let backoff = WAIT_MIN.saturating_mul(1 << failures.saturating_sub(1).min(DOUBLINGS_MAX)).min(WAIT_MAX);
    match asked.retry_after.map(|asked| asked.min(WAIT_MAX)).filter(|asked| *asked > backoff) {
        Some(asked) => NextFetch {
            wait: jittered(asked, random),
            reason: "the server asks for it (Retry-After)".to_owned(),
        },
        None => NextFetch {
            wait: jittered(backoff, random),
            reason: format!("failed {failures} {} in a row", if failures == 1 { "time" } else { "times" }),
        },
    }
}

/// When a source is fetched whose host asked for a pause in answer to the fetch of another. It is spread by seconds, not by a part
/// of the pause: after a day that would be hours.
pub fn after_pause(pause: Duration, random: f64) -> NextFetch {
    NextFetch {
        wait: pause.min(WAIT_MAX) + PAUSE_JITTER.mul_f64(random),
        reason: "its host asks for it (Retry-After)".to_owned(),
    }
}

fn jittered(wait: Duration, random: f64) -> Duration {
    wait.mul_f64(1.0 + JITTER * random)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn hourly() -> Asked {
        Asked { interval: HOUR, ..Asked::default() }
    }

    #[test]
    fn the_longest_wait_decides_and_is_named() {
        let next = after_success(&hourly(), 0.0);
        assert_eq!((next.wait, next.reason.as_str()), (HOUR, "the interval of the source"));
        let next = after_success(&Asked { max_age: Some(2 * HOUR), ttl: Some(HOUR), ..hourly() }, 0.0);
        assert_eq!(next.wait, 2 * HOUR);
        assert!(next.reason.contains("Cache-Control"), "{}", next.reason);
        let next = after_success(&Asked { ttl: Some(3 * HOUR), ..hourly() }, 0.0);
        assert!(next.wait == 3 * HOUR && next.reason.contains("ttl"), "{next:?}");
        let next = after_success(&Asked { pushed: true, ..hourly() }, 0.0);
        assert_eq!(next.wait, WAIT_PUSHED);
    }

    #[test]
    fn no_request_is_longer_than_a_day_or_shorter_than_a_minute() {
        let far = Asked { max_age: Some(Duration::MAX), ..hourly() };
        assert_eq!(after_success(&far, 0.0).wait, WAIT_MAX);
        assert_eq!(after_success(&Asked::default(), 0.0).wait, WAIT_MIN);
        assert_eq!(
            after_failure(&Asked { retry_after: Some(Duration::MAX), ..hourly() }, 1, 0.0).wait,
            WAIT_MAX
        );
    }

    #[test]
    fn failures_back_off_up_to_a_day() {
        let waits: Vec<u64> = [1, 2, 3, 10, 11, 12, u32::MAX]
            .map(|failures| after_failure(&hourly(), failures, 0.0).wait.as_secs() / 60)
            .to_vec();
        assert_eq!(waits, [1, 2, 4, 512, 1024, 1440, 1440]);
        let next = after_failure(&Asked { retry_after: Some(HOUR), ..hourly() }, 1, 0.0);
        assert!(next.wait == HOUR && next.reason.contains("Retry-After"), "{next:?}");
    }

    #[test]
    fn a_pause_of_a_host_is_spread_by_a_minute_at_most() {
        assert_eq!(after_pause(HOUR, 0.0).wait, HOUR);
        assert_eq!(after_pause(Duration::MAX, 1.0).wait, WAIT_MAX + Duration::from_secs(60));
    }

    #[test]
    fn waits_are_spread_by_a_tenth_at_most() {
        assert_eq!(after_success(&hourly(), 1.0).wait, HOUR + HOUR / 10);
    }
}
