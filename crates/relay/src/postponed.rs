//! Entities whose events cannot be sent: how long each is left out, so that others flow.

use std::collections::HashMap;
use std::time::Duration;

/// After the first failure: many pass at once.
const FIRST: Duration = Duration::from_millis(100);
/// While nothing can be sent: an outage, after which all entities go on within this time.
const LONGEST_OF_ALL: Duration = Duration::from_secs(5);
/// While others are sent. A send to a partition without a leader takes as long as a batch may, and the others of the batch wait for it.
const LONGEST: Duration = Duration::from_secs(30);
/// Entities that are remembered. Beyond it, all are forgotten, and begin again with the shortest wait.
const REMEMBERED_MAX: usize = 10_000;

/// The entities that could not be sent lately, each with its failures in a row.
#[derive(Debug, Default)]
pub(crate) struct Postponed {
    failures: HashMap<String, u32>,
}

impl Postponed {
    /// Whether all entities can be sent, as far as is known.
    pub(crate) fn is_empty(&self) -> bool {
        self.failures.is_empty()
    }

    /// Events of the entity were sent.
    pub(crate) fn sent(&mut self, entity: &str) {
        self.failures.remove(entity);
    }

    /// An event of the entity was not sent. Returns how long to leave it out.
    pub(crate) fn failed(&mut self, entity: &str, others_were_sent: bool) -> Duration {
        if self.failures.len() >= REMEMBERED_MAX && !self.failures.contains_key(entity) {
            self.failures.clear();
        }
        let failures = self.failures.entry(entity.to_owned()).or_insert(0);
        let wait = FIRST.saturating_mul(1 << (*failures).min(10));
        *failures = failures.saturating_add(1);
        wait.min(if others_were_sent { LONGEST } else { LONGEST_OF_ALL })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(postponed: &mut Postponed, others_were_sent: bool, times: usize) -> Vec<u128> {
        (0..times).map(|_| postponed.failed("a", others_were_sent).as_millis()).collect()
    }

    #[test]
    fn the_wait_of_an_entity_grows_until_it_was_sent() {
        let mut postponed = Postponed::default();
        let expected = [100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 30_000, 30_000];
        assert_eq!(waits(&mut postponed, true, 11), expected);
        postponed.sent("a");
        assert!(postponed.is_empty());
        assert_eq!(waits(&mut postponed, true, 2), [100, 200]);
    }

    #[test]
    fn the_wait_of_an_outage_is_shorter() {
        let mut postponed = Postponed::default();
        assert_eq!(waits(&mut postponed, false, 20).last(), Some(&5_000));
        assert_eq!(waits(&mut postponed, true, 1), [30_000]);
    }
}
