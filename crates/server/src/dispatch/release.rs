//! Gives back jobs that were claimed for a stream and cannot be sent.

use pitwheel::Claim;
use pitwheel::engine::{RetryDelay, SettleResult};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::dispatch::reports::Reports;

#[derive(Clone)]
pub(crate) struct Releaser {
    reports: Reports,
    tasks: TaskTracker,
    /// Cancelled when the node gives up: jobs that are not released by then are released by the sweep.
    end: CancellationToken,
}

impl Releaser {
    pub(crate) fn new(reports: Reports, tasks: TaskTracker, end: CancellationToken) -> Releaser {
        Releaser { reports, tasks, end }
    }

    /// Releases these claims in the background and retries until the database answers.
    pub(crate) fn release(&self, claims: Vec<Claim>) {
        if claims.is_empty() {
            return;
        }
        let (reports, end) = (self.reports.clone(), self.end.clone());
        self.tasks.spawn(async move {
            let (mut claims, mut retry_delay) = (claims, RetryDelay::default());
            loop {
                match reports.release(claims.clone()).await {
                    Ok(results) => {
                        let mut results = results.into_iter();
                        let is_left =
                            |result| matches!(result, SettleResult::Locked | SettleResult::Refused(_));
                        claims.retain(|_| results.next().is_some_and(is_left));
                    }
                    Err(error) => {
                        tracing::warn!(%error, jobs = claims.len(), "cannot release jobs that were not sent, will retry");
                    }
                }
                if claims.is_empty() {
                    return;
                }
                retry_delay.wait(&end).await;
                if end.is_cancelled() {
                    return;
                }
            }
        });
    }
}
