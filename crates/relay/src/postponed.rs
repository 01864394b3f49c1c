//! Entities whose events cannot be sent: how long each is left out, so that others flow.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// After the first failure: many pass at once.
const FIRST: Duration = Duration::from_millis(100);
/// While nothing can be sent: an outage, after which all entities go on within this time.
const LONGEST_OF_ALL: Duration = Duration::from_secs(5);
/// While others are sent. A send to a partition without a leader takes as long as a batch may, and the others of the batch wait for it.
const LONGEST: Duration = Duration::from_secs(30);
/// Entities that are remembered. Beyond it, all are forgotten, and begin again with the shortest wait.
const REMEMBERED_MAX: usize = 10_000;
/// How long an entity is remembered after its wait. If this relay still holds it, its events are taken again well within this time, also behind a
/// batch that takes as long as it may; otherwise another relay sends them, or they are gone.
const FORGET_AFTER: Duration = Duration::from_secs(60);

/// The entities that could not be sent lately.
#[derive(Debug, Default)]
pub(crate) struct Postponed {
    failures: HashMap<String, Failures>,
}

#[derive(Debug)]
struct Failures {
    in_a_row: u32,
    left_out_until: Instant,
}

impl Postponed {
    /// Whether all entities can be sent, as far as is known.
    pub(crate) fn is_empty(&self) -> bool {
        self.failures.is_empty()
    }

    /// Events of the entity were sent, or it was parked.
    pub(crate) fn forget(&mut self, entity: &str) {
        self.failures.remove(entity);
    }

    /// Forgets entities that this relay does not hold any more.
    pub(crate) fn forget_old(&mut self, now: Instant) {
        self.failures.retain(|_, failures| now < failures.left_out_until + FORGET_AFTER);
    }

    /// An event of the entity was not sent. Returns until when to leave it out.
    pub(crate) fn failed(&mut self, entity: &str, others_were_sent: bool, now: Instant) -> Instant {
        if self.failures.len() >= REMEMBERED_MAX && !self.failures.contains_key(entity) {
            self.failures.clear();
        }
        let new = Failures { in_a_row: 0, left_out_until: now };
        let failures = self.failures.entry(entity.to_owned()).or_insert(new);
        let wait = FIRST.saturating_mul(1 << failures.in_a_row.min(10));
        failures.in_a_row = failures.in_a_row.saturating_add(1);
        failures.left_out_until = now + wait.min(if others_were_sent { LONGEST } else { LONGEST_OF_ALL });
        failures.left_out_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(postponed: &mut Postponed, others_were_sent: bool, times: usize) -> Vec<u128> {
        let now = Instant::now();
        let wait = |_| postponed.failed("a", others_were_sent, now).duration_since(now).as_millis();
        (0..times).map(wait).collect()
    }

    #[test]
    fn the_wait_of_an_entity_grows_until_it_was_sent() {
        let mut postponed = Postponed::default();
        let expected = [100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 30_000, 30_000];
        assert_eq!(waits(&mut postponed, true, 11), expected);
        postponed.forget("a");
        assert!(postponed.is_empty());
        assert_eq!(waits(&mut postponed, true, 2), [100, 200]);
    }

    #[test]
    fn the_wait_of_an_outage_is_shorter() {
        let mut postponed = Postponed::default();
        assert_eq!(waits(&mut postponed, false, 20).last(), Some(&5_000));
        assert_eq!(waits(&mut postponed, true, 1), [30_000]);
    }

    #[test]
    fn an_entity_that_is_not_held_any_more_is_forgotten() {
        let (mut postponed, now) = (Postponed::default(), Instant::now());
        postponed.failed("a", true, now);
        let until = postponed.failed("b", true, now + Duration::from_secs(1));
        postponed.forget_old(until);
        assert_eq!(postponed.failures.len(), 2);
        postponed.forget_old(now + Duration::from_millis(100) + FORGET_AFTER);
        assert_eq!(postponed.failures.keys().collect::<Vec<_>>(), ["b"]);
        postponed.forget_old(until + FORGET_AFTER);
        assert!(postponed.is_empty());
    }
}
