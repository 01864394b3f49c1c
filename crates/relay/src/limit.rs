//! Until when a batch may be sent.

use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How long a relay that stops waits for the answers to what it has sent. A receiver that works answers sooner; of one that
/// does not, the next relay sends the events again.
const STOP_GRACE: Duration = Duration::from_secs(1);
/// How long a batch may take, however often its lease is renewed: what the relay holds is shared with others between batches.
const SEND_MAX: Duration = Duration::from_secs(10);

/// Until when a batch may be sent: shortly before the lease on its events expires, and until the relay stops.
#[derive(Debug)]
pub struct Limit {
    deadline: watch::Sender<Instant>,
    latest: Instant,
    stop: CancellationToken,
}

impl Limit {
    /// A limit at the deadline, or at the stop.
    pub fn new(deadline: Instant, stop: CancellationToken) -> Limit {
        Limit { deadline: watch::Sender::new(deadline), latest: Instant::now() + SEND_MAX, stop }
    }

    /// The lease was renewed: the deadline is another one now.
    pub(crate) fn move_to(&self, deadline: Instant) {
        self.deadline.send_replace(deadline);
    }

    /// When to stop, as far as is known now.
    pub(crate) fn deadline(&self) -> Instant {
        (*self.deadline.borrow()).min(self.latest)
    }

    /// Whether nothing more may be sent.
    pub fn is_reached(&self) -> bool {
        self.stop.is_cancelled() || Instant::now() >= self.deadline()
    }

    /// Returns when answers are no longer waited for: at the deadline, or a moment after the stop.
    pub async fn give_up(&self) {
        let stopped = async {
            self.stop.cancelled().await;
            tokio::time::sleep(STOP_GRACE).await;
        };
        let expired = async {
            while Instant::now() < self.deadline() {
                tokio::time::sleep_until(self.deadline().into()).await;
            }
        };
        tokio::select! {
            () = expired => {}
            () = stopped => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(milliseconds: u64) -> Limit {
        Limit::new(Instant::now() + Duration::from_millis(milliseconds), CancellationToken::new())
    }

    #[tokio::test]
    async fn a_renewal_moves_the_limit() {
        let limit = limit(10);
        limit.move_to(Instant::now() + Duration::from_millis(80));
        let begun = Instant::now();
        limit.give_up().await;
        assert!(begun.elapsed() >= Duration::from_millis(79), "{:?}", begun.elapsed());
        assert!(limit.is_reached());
    }

    #[test]
    fn no_renewal_moves_it_beyond_the_longest_time_of_a_batch() {
        let limit = limit(10);
        limit.move_to(Instant::now() + Duration::from_secs(3600));
        assert!(limit.deadline() <= Instant::now() + SEND_MAX);
    }

    #[test]
    fn nothing_is_sent_after_the_stop() {
        let limit = limit(60_000);
        assert!(!limit.is_reached());
        limit.stop.cancel();
        assert!(limit.is_reached());
    }
}
