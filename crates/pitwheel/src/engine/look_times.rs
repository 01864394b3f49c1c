//! When the claimer looks back for jobs below its bounds, and a node for lanes that need promotion.

use std::time::{Duration, Instant};

/// The interval of looks back.
pub(super) const LOOK_BACK: Duration = Duration::from_secs(1);
/// A look back that takes long, because a transaction has been open for long, is made less often: it takes at most one part in
/// this many of the time.
const SHARE: u32 = 10;
/// How often a look reads from the start, in case something appeared where it should not.
const DEEP_LOOK: Duration = Duration::from_secs(60);

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

    /// The look has ended, or has failed.
    pub(super) fn ended(&mut self, begun: Instant, now: Instant) {
        let pause = (now - begun) * SHARE;
        if self.is_deep {
            (self.next, self.next_deep) = (now + LOOK_BACK, now + DEEP_LOOK.max(pause));
        } else {
            self.next = now + LOOK_BACK.max(pause);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn a_slow_deep_look_leaves_the_others_as_they_are() {
        let start = Instant::now();
        let mut looks = LookTimes::new(start);
        assert!(!looks.begin(start));
        looks.ended(start, start);
        assert_eq!(looks.next, after(start, 1));

        let (begun, ended) = (after(start, 60), after(start, 90));
        assert!(looks.begin(begun));
        looks.ended(begun, ended);
        assert_eq!(looks.next, after(ended, 1));
        assert!(!looks.begin(after(ended, 299)), "the deep look took 30 s: the next one is 300 s later");
        assert!(looks.begin(after(ended, 300)));
    }

    #[test]
    fn a_look_that_takes_long_is_made_less_often() {
        let start = Instant::now();
        let mut looks = LookTimes::new(start);
        looks.begin(start);
        looks.ended(start, after(start, 2));
        assert_eq!(looks.next, after(start, 22));
    }
}
