//! Waiting between attempts to reach the database or a server.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::job::backoff::Backoff;

/// From 50 ms up to 2 s: short, because everything waits while the database is away.
const RECONNECT: Backoff = Backoff { first: Duration::from_millis(50), longest: Duration::from_secs(2) };

/// The delay before the next attempt: it doubles with each failure, and is spread at random so that many processes do not
/// come back at once.
#[derive(Debug, Default)]
pub struct RetryDelay {
    failures: u32,
}

impl RetryDelay {
    /// Starts over after a success.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// Waits before the next attempt, or until `stop`.
    pub async fn wait(&mut self, stop: &CancellationToken) {
        self.failures = self.failures.saturating_add(1);
        let span = RECONNECT.span(self.failures);
        tokio::select! {
            () = tokio::time::sleep(span.mul_f64(0.5 + fastrand::f64() / 2.0)) => {}
            () = stop.cancelled() => {}
        }
    }
}
