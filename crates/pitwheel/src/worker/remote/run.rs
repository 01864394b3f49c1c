//! Running a remote worker from its start to its end.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::job::claim::{Claim, ClaimRefusal, QueueSlots};
use crate::worker::remote::core::{Remote, State};
use crate::worker::remote::message::release;
use crate::worker::remote::progress::report_progress;
use crate::worker::remote::report::{report_left, report_results, report_set_aside};
use crate::worker::remote::{heartbeat, stream};
use crate::worker::stats::Stats;

/// How long a worker that ends tries to report its last results, then to sign off. What it cannot report is released when its
/// leases expire.
const LAST_REPORTS: Duration = Duration::from_secs(10);
const LAST_HEARTBEAT: Duration = Duration::from_secs(5);
/// Reports at a time. The server answers when the endings are written, but their slots are free when it has received them, so a
/// report does not wait for the answer to the one before.
const REPORTS_MAX: usize = 4;

impl Remote {
    /// Works until `shutdown` ends, like a worker at the database.
    pub(crate) async fn run(
        self,
        queues: &[QueueSlots],
        grace: Duration,
        shutdown: impl Future<Output = ()>,
    ) -> Result<Stats, Error> {
        let remote = Arc::new(self);
        let streams = async {
            join_all(queues.iter().map(|queue| stream::keep_open(&remote, queue))).await;
        };
        remote.run_streams(streams, grace, shutdown).await
    }

    /// Runs one job by its id, like a worker at the database.
    pub(crate) async fn run_job(
        self,
        id: i64,
        grace: Duration,
        shutdown: impl Future<Output = ()>,
    ) -> Result<Result<Stats, ClaimRefusal>, Error> {
        let remote = Arc::new(self);
        let mut refusal = None;
        let only = async { refusal = stream::open_for_job(&remote, id).await };
        let stats = remote.run_streams(only, grace, shutdown).await?;
        Ok(refusal.map_or(Ok(stats), Err))
    }

    /// Everything that a worker does beside its streams, until these have ended and all jobs are reported.
    async fn run_streams(
        &self,
        streams: impl Future<Output = ()>,
        grace: Duration,
        shutdown: impl Future<Output = ()>,
    ) -> Result<Stats, Error> {
        let remote = self;
        let shut = CancellationToken::new();
        let work = async {
            streams.await;
            remote.finish_within(grace, &shut).await;
            remote.results.close();
            remote.closed.cancel();
        };
        let loops = async {
            tokio::select! {
                () = heartbeat::run(remote) => {}
                () = report_progress(remote) => {}
                () = report_set_aside(remote) => {}
                () = async { tokio::join!(work, report_to_the_end(remote)); } => {}
            }
        };
        let shutdown = async {
            shutdown.await;
            shut.cancel();
            remote.stop.cancel();
        };
        tokio::join!(loops, async {
            tokio::select! {
                () = shutdown => {}
                () = remote.closed.cancelled() => {}
            }
        });
        if let Some(problem) = remote.state().problem.take() {
            return Err(problem);
        }
        // Nothing runs here any more: the server need not wait for the leases to expire, and releases what could not be reported.
        remote.state().held.clear();
        if !matches!(tokio::time::timeout(LAST_HEARTBEAT, remote.heartbeat()).await, Ok(Ok(()))) {
            tracing::warn!(worker = remote.name, "could not sign off; the leases will expire");
        }
        Ok(remote.counters.stats())
    }

    /// Waits until everything that runs is reported.
    pub(super) async fn idle(&self) {
        self.until(|state| state.held.is_empty()).await;
    }

    async fn until(&self, is_so: impl Fn(&State) -> bool) {
        while !is_so(&self.state()) {
            self.reported.notified().await;
        }
    }

    /// Waits until everything is reported, but after the shutdown only for handlers, and no longer than the grace time: while the server is
    /// away nothing is reported. Then stops what is left and releases it.
    async fn finish_within(&self, grace: Duration, shutdown: &CancellationToken) {
        tokio::select! {
            () = self.idle() => return,
            () = shutdown.cancelled() => {}
        }
        let ended = self.until(|state| state.held.values().all(|held| held.ended));
        if tokio::time::timeout(grace, ended).await.is_ok() {
            return;
        }
        let mut state = self.state();
        let left: Vec<Claim> = state
            .held
            .iter_mut()
            .filter(|(_, held)| !held.ended)
            .map(|(claim, held)| {
                held.task.abort();
                held.ended = true;
                *claim
            })
            .collect();
        drop(state);
        tracing::warn!(
            worker = self.name,
            jobs = left.len(),
            "releasing jobs that did not finish in the grace time"
        );
        let _ = self.results.push(left.into_iter().map(release));
    }
}

async fn report_to_the_end(remote: &Remote) {
    let late = async {
        remote.closed.cancelled().await;
        tokio::time::sleep(LAST_REPORTS).await;
    };
    let reports = async {
        join_all((0..REPORTS_MAX).map(|_| report_results(remote))).await;
        report_left(remote).await;
    };
    tokio::select! {
        () = reports => {}
        () = late => {
            tracing::warn!(worker = remote.name, "no server accepts the last reports: their jobs will run again");
        }
    }
}
