//! Gives back jobs that were claimed for a stream and are not sent.

use pitwheel::Claim;
use pitwheel::engine::{RetryDelay, SettleResult, Settlement};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::dispatch::reports::{Endings, Reports};
use crate::dispatch::source::Source;

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
        self.write(claims.into_iter().map(Settlement::release).collect());
    }

    /// Writes the endings of jobs that are not sent, like [`Releaser::release`].
    pub(crate) fn write(&self, endings: Vec<Settlement>) {
        if endings.is_empty() {
            return;
        }
        let (reports, end) = (self.reports.clone(), self.end.clone());
        self.tasks.spawn(async move {
            let (mut endings, mut retry_delay) = (endings, RetryDelay::default());
            loop {
                let sources = vec![Source::Node; endings.len()];
                match reports.settle(Endings { endings: endings.clone(), sources, ..Endings::default() }).await {
                    Ok(results) => {
                        let mut results = results.into_iter();
                        let is_left =
                            |result| matches!(result, SettleResult::Locked | SettleResult::Refused(_));
                        endings.retain(|_| results.next().is_some_and(is_left));
                    }
                    Err(error) => {
                        tracing::warn!(%error, jobs = endings.len(), "cannot release jobs that were not sent, will retry");
                    }
                }
                if endings.is_empty() {
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
