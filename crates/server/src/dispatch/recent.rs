//! Claims that met something here a short time ago, so that a repeated report is recognised: they were settled and left no row in the
//! history, or their jobs were locked.

use std::collections::{HashMap, VecDeque};

use pitwheel::Claim;

/// How many claims are remembered: those of some seconds at full load, in about 5 MB.
const CLAIMS_MAX: usize = 50_000;

#[derive(Default)]
pub(crate) struct RecentClaims {
    /// The holder of each claim, and whether its job was completed; by job and fence.
    ends: HashMap<(i64, i64), (i64, bool)>,
    /// Oldest first.
    order: VecDeque<(i64, i64)>,
}

impl RecentClaims {
    pub(crate) fn add(&mut self, claim: Claim, is_done: bool) {
        let key = (claim.id, claim.fence);
        if self.ends.insert(key, (claim.holder, is_done)).is_some() {
            return;
        }
        self.order.push_back(key);
        if self.order.len() > CLAIMS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.ends.remove(&oldest);
        }
    }

    /// Whether the claim was settled; if `is_done`, as completed. A holder that is not known is not compared.
    pub(crate) fn contains(&self, claim: Claim, is_done: bool) -> bool {
        let Some((holder, was_done)) = self.ends.get(&(claim.id, claim.fence)) else { return false };
        (claim.holder == 0 || *holder == 0 || *holder == claim.holder) && (*was_done || !is_done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(id: usize, holder: i64) -> Claim {
        Claim { id: id as i64, fence: 1, holder }
    }

    #[test]
    fn the_latest_claims_are_remembered_and_their_number_is_bounded() {
        let mut recent = RecentClaims::default();
        (0..CLAIMS_MAX + 10).for_each(|id| recent.add(claim(id, 7), true));
        recent.add(claim(20, 7), true);
        assert!(!recent.contains(claim(9, 7), true) && recent.contains(claim(10, 7), true));
        assert!(recent.contains(claim(CLAIMS_MAX + 9, 7), true));
        assert_eq!((recent.order.len(), recent.ends.len()), (CLAIMS_MAX, CLAIMS_MAX));
    }

    #[test]
    fn another_holder_with_the_same_fence_is_not_taken_for_it() {
        let mut recent = RecentClaims::default();
        recent.add(claim(1, 7), true);
        assert!(recent.contains(claim(1, 7), true) && recent.contains(claim(1, 0), true));
        assert!(!recent.contains(claim(1, 8), true));
    }

    #[test]
    fn a_completion_after_another_ending_is_not_taken_for_a_repetition() {
        let mut recent = RecentClaims::default();
        recent.add(claim(1, 7), false);
        assert!(recent.contains(claim(1, 7), false) && !recent.contains(claim(1, 7), true));
    }
}
