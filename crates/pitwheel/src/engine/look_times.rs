//! When the claimer looks back for jobs below its bounds, and a node for lanes that need promotion.

use std::future::{Ready, ready};
use std::pin::pin;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::Either;
use futures_util::stream::FuturesUnordered;

/// The interval of looks back.
pub(super) const LOOK_BACK: Duration = Duration::from_secs(1);
/// How long a look may take during which nothing is claimed.
pub(crate) const LOOK_MAX: Duration = Duration::from_secs(5);
/// A look back that takes long, because a transaction has been open for long, is made less often: it takes at most one part in
/// this many of the time.
const SHARE: u32 = 10;
/// The longest pause after a look: what only a look finds waits for it. One that takes longer than a second has a larger share.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// How often a look reads from the start, in case something appeared where it should not.
const DEEP_LOOK: Duration = Duration::from_secs(60);
/// The longest pause after a deep look: ten times the 30 seconds that a statement may take.
const DEEP_PAUSE_MAX: Duration = Duration::from_secs(300);

/// Deep looks have times of their own: if only one of them takes long, the others go on every second.
pub(super) struct LookTimes {
    pub(super) next: Instant,
    next_deep: Instant,
    is_deep: bool,
}

impl LookTimes {
    pub(super) fn new(now: Instant) -> LookTimes {
        LookTimes { next: now, next_deep: now + DEEP_LOOK, is_deep: false }
    }

    /// Whether the look that begins now is a deep one.
    pub(super) fn begin(&mut self, now: Instant) -> bool {
        self.is_deep = now >= self.next_deep;
        self.is_deep
    }

    /// The look has succeeded. `took` is the time of its statements.
    pub(super) fn succeeded(&mut self, took: Duration, now: Instant) {
        let pause = took.saturating_mul(SHARE);
        if self.is_deep {
            (self.next, self.next_deep) = (now + LOOK_BACK, now + pause.clamp(DEEP_LOOK, DEEP_PAUSE_MAX));
        } else {
            self.next = now + pause.clamp(LOOK_BACK, PAUSE_MAX);
        }
    }

    /// A slice of a look has succeeded, or took too long; more slices are left.
    pub(super) fn goes_on(&mut self, took: Duration, now: Instant) {
        self.next = now + took.saturating_mul(SHARE).clamp(LOOK_BACK, PAUSE_MAX);
    }

    /// The look has failed. How long that took tells nothing about the next one: a broken connection is noticed after any time.
    pub(super) fn failed(&mut self, now: Instant) {
        self.succeeded(Duration::ZERO, now);
    }
}

/// The look in progress, if there is one, or its reply.
pub(super) type Looks<F> = FuturesUnordered<Either<F, Ready<<F as Future>::Output>>>;

/// Waits for `work`. A look in progress goes on beside it: otherwise the time of the work would count as its own.
pub(super) async fn beside<T, F: Future>(looks: &mut Looks<F>, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    tokio::select! {
        done = &mut work => return done,
        Some(reply) = looks.next() => looks.push(Either::Right(ready(reply))),
    }
    work.await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_look_ends_beside_other_work_and_its_reply_is_kept() {
        let (ended, mut looks) = (tokio::sync::Notify::new(), Looks::new());
        looks.push(Either::Left(async {
            ended.notify_one();
            "found"
        }));
        // The work is done when the look has ended.
        beside(&mut looks, ended.notified()).await;
        assert_eq!(looks.next().await, Some("found"));
        beside(&mut looks, ready(())).await;
    }

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_slow_deep_look_leaves_the_others_as_they_are() {
        let start = Instant::now();
        let mut looks = LookTimes::new(start);
        assert!(!looks.begin(start));
        looks.succeeded(Duration::ZERO, start);
        assert_eq!(looks.next, after(start, 1));

        let ended = after(start, 80);
        assert!(looks.begin(after(start, 60)));
        looks.succeeded(seconds(20), ended);
        assert_eq!(looks.next, after(ended, 1));
        assert!(!looks.begin(after(ended, 199)), "the deep look took 20 s: the next one is 200 s later");
        assert!(looks.begin(after(ended, 200)));
    }

    #[test]
    fn a_look_that_takes_long_is_made_less_often() {
        let start = Instant::now();
        let mut looks = LookTimes::new(start);
        looks.begin(start);
        looks.succeeded(Duration::from_millis(500), start);
        assert_eq!(looks.next, after(start, 5));
    }

    #[test]
    fn no_look_however_long_it_took_delays_the_next_one_for_minutes() {
        let start = Instant::now();
        let mut looks = LookTimes::new(start);
        looks.begin(start);
        looks.succeeded(seconds(60), start);
        assert_eq!(looks.next, after(start, 10));

        let deep = after(start, 60);
        assert!(looks.begin(deep));
        looks.succeeded(seconds(600), deep);
        assert_eq!(looks.next, after(deep, 1));
        assert!(looks.begin(after(deep, 300)));
    }

    #[test]
    fn slices_are_made_less_often_the_longer_they_take_and_delay_no_deep_look() {
        let start = Instant::now();
        let mut looks = LookTimes::new(start);
        for (took, pause) in [(Duration::ZERO, 1), (Duration::from_millis(300), 3), (seconds(5), 10)] {
            looks.goes_on(took, start);
            assert_eq!(looks.next, after(start, pause));
        }
        assert!(looks.begin(after(start, 60)));
    }

    #[test]
    fn a_failed_look_is_followed_by_one_soon_and_a_failed_deep_one_by_others() {
        let start = Instant::now();
        let mut looks = LookTimes::new(start);
        looks.begin(start);
        looks.failed(start);
        assert_eq!(looks.next, after(start, 1));

        let deep = after(start, 60);
        assert!(looks.begin(deep));
        looks.failed(deep);
        assert_eq!(looks.next, after(deep, 1));
        assert!(!looks.begin(after(deep, 59)), "the others go on beside a deep look that fails each time");
        assert!(looks.begin(after(deep, 60)));
    }
}
