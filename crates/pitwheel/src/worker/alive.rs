//! Whether a worker's lease may have ended without its knowledge: its process was stopped, or cut off.

use std::time::{Duration, Instant};

/// When a worker was last known to be alive, by its own clock.
pub(super) struct Alive {
    lease: Duration,
    at: Instant,
}

impl Alive {
    /// `at`: when the call was sent that registered the worker.
    pub(super) fn new(lease: Duration, at: Instant) -> Alive {
        Alive { lease, at }
    }

    /// A call was sent at this time, and its answer says that the worker was alive.
    pub(super) fn proved(&mut self, sent: Instant) {
        self.at = self.at.max(sent);
    }

    /// A whole lease has passed since then. What was claimed before may belong to others, and is not started.
    pub(super) fn is_in_doubt(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) >= self.lease
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_in_doubt_a_lease_after_the_last_call_that_was_answered() {
        let (start, lease) = (Instant::now(), Duration::from_secs(30));
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut alive = Alive::new(lease, start);
        assert!(!alive.is_in_doubt(after(29)));
        assert!(alive.is_in_doubt(after(30)));
        alive.proved(after(20));
        alive.proved(after(10));
        assert!(!alive.is_in_doubt(after(49)), "answers may come in any order");
        assert!(alive.is_in_doubt(after(50)));
    }
}
