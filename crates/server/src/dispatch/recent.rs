//! Claims that met something here a short time ago, so that a repeated report is recognised: they were settled and left no row in the
//! history, their jobs were locked, or their endings are just being written.

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

/// Claims whose endings are being written. Until the write has returned, what it did to them is not remembered.
#[derive(Default)]
pub(crate) struct ClaimsBeingWritten {
    /// In how many batches each is; by job and fence.
    batches: HashMap<(i64, i64), usize>,
}

impl ClaimsBeingWritten {
    /// The claims of a batch that is about to be written.
    pub(crate) fn add(&mut self, claims: impl Iterator<Item = Claim>) {
        claims.for_each(|claim| *self.batches.entry((claim.id, claim.fence)).or_default() += 1);
    }

    /// The batch was written, or was not.
    pub(crate) fn remove(&mut self, claims: impl Iterator<Item = Claim>) {
        for claim in claims {
            let key = (claim.id, claim.fence);
            match self.batches.get_mut(&key) {
                Some(count) if *count > 1 => *count -= 1,
                _ => drop(self.batches.remove(&key)),
            }
        }
    }

    pub(crate) fn contains(&self, claim: Claim) -> bool {
        self.batches.contains_key(&(claim.id, claim.fence))
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
    fn a_claim_is_being_written_until_its_last_batch_is() {
        let mut written = ClaimsBeingWritten::default();
        written.add([claim(1, 7), claim(1, 7), claim(2, 7)].into_iter());
        written.add([claim(1, 0)].into_iter());
        written.remove([claim(1, 7), claim(1, 7), claim(2, 7)].into_iter());
        assert!(written.contains(claim(1, 7)) && !written.contains(claim(2, 7)));
        written.remove([claim(1, 0)].into_iter());
        assert!(written.batches.is_empty());
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
