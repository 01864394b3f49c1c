//! How long parts of answers wait until the client of their connection takes them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// How long a turn lasts. What was not taken after three whole turns is too old: after 30 to 40 seconds.
pub(crate) const TURN: Duration = Duration::from_secs(10);
/// The turns whose parts are counted: the current one, and three before.
const TURNS: usize = 4;

/// The parts of one connection that wait, counted by the turn in which they began to wait: this costs no list and no timer for each.
#[derive(Default)]
pub(crate) struct Ages {
    turn: AtomicUsize,
    waiting: [AtomicUsize; TURNS],
}

impl Ages {
    /// A part waits from now on.
    pub(crate) fn begin(self: &Arc<Ages>) -> Age {
        let turn = self.turn.load(Ordering::Acquire) % TURNS;
        self.waiting[turn].fetch_add(1, Ordering::AcqRel);
        Age { ages: self.clone(), turn }
    }

    /// Begins the next turn. False: parts of the turn before those that are counted still wait.
    #[must_use = "the connection must be closed"]
    pub(crate) fn next_turn(&self) -> bool {
        let turn = self.turn.fetch_add(1, Ordering::AcqRel).wrapping_add(1) % TURNS;
        self.waiting[turn].load(Ordering::Acquire) == 0
    }
}

/// A part that waits until this is dropped.
pub(crate) struct Age {
    ages: Arc<Ages>,
    turn: usize,
}

impl Drop for Age {
    fn drop(&mut self) {
        self.ages.waiting[self.turn].fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_waits_for_more_than_three_turns_is_too_old() {
        let ages = Arc::new(Ages::default());
        let old = ages.begin();
        assert!(ages.next_turn() && ages.next_turn() && ages.next_turn());
        let young = ages.begin();
        assert!(!ages.next_turn(), "the first waits for four turns");
        drop(old);
        assert!(ages.next_turn() && ages.next_turn());
        assert!(!ages.next_turn(), "the second");
        drop(young);
        assert!((0..10).all(|_| ages.next_turn()));
    }
}
