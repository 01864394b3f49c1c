//! Endings that are written again later: those whose rows are locked, and those that take the place of refused ones.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::job::backoff::Backoff;
use crate::job::claim::Claim;

/// The wait after an ending of a job was refused. It doubles, because what takes the place of a refused ending may be refused as well, for as
/// long as the reason lasts.
const REFUSED: Backoff = Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(5) };

/// Bounded by the slots: a job keeps its place until its ending is written.
pub(super) struct Later<T> {
    /// Each with the time from which on it is written again.
    waiting: Vec<(Instant, T)>,
    /// How often endings of a job were refused.
    refusals: HashMap<Claim, u32>,
}

impl<T> Default for Later<T> {
    fn default() -> Later<T> {
        Later { waiting: Vec::new(), refusals: HashMap::new() }
    }
}

impl<T> Later<T> {
    /// Adds endings that are due at the next look.
    pub(super) fn add(&mut self, endings: impl IntoIterator<Item = T>, now: Instant) {
        self.waiting.extend(endings.into_iter().map(|ending| (now, ending)));
    }

    /// Adds what takes the place of a refused ending.
    pub(super) fn add_refused(&mut self, claim: Claim, ending: T, now: Instant) {
        let refusals = self.refusals.entry(claim).or_default();
        *refusals = refusals.saturating_add(1);
        self.waiting.push((now + REFUSED.span(*refusals), ending));
    }

    /// The job has ended.
    pub(super) fn ended(&mut self, claim: Claim) {
        // For almost all jobs there is nothing to forget, and they need not be hashed.
        if !self.refusals.is_empty() {
            self.refusals.remove(&claim);
        }
    }

    /// Takes the endings that are due.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<T> {
        self.waiting.extract_if(.., |(due, _)| *due <= now).map(|(_, ending)| ending).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_whose_endings_are_refused_waits_longer_each_time_and_delays_no_other() {
        let (refused, begun) = (Claim { id: 1, fence: 1, holder: 1 }, Instant::now());
        let mut later = Later::default();
        let (mut now, mut waits) = (begun, Vec::new());
        for _ in 0..8 {
            later.add_refused(refused, "refused", now);
            later.add(["locked"], now);
            assert_eq!(later.take_due(now), ["locked"]);
            let mut wait = Duration::ZERO;
            while later.take_due(now + wait).is_empty() {
                wait += Duration::from_millis(100);
            }
            now += wait;
            waits.push(wait.as_millis());
        }
        assert_eq!(waits, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert!(later.is_empty());

        later.ended(refused);
        later.add_refused(refused, "another ending", now);
        assert_eq!(later.take_due(now + Duration::from_millis(100)), ["another ending"]);
    }
}
