//! Settles what workers left when their streams ended.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pitwheel::Claim;
use pitwheel::engine::{Pool, RetryDelay, Session, SettleResult, held, retire};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::dispatch::reports::{NotWritten, Reports};
use crate::limits::STREAMS_MAX;

/// How long a statement may take: the other streams wait for it, and the connection may be broken without notice.
const STATEMENT_MAX: Duration = Duration::from_secs(5);

/// The claims that the worker of an ended stream still runs. Every other claim of it never reached it.
pub(crate) type Running = HashSet<Claim>;

/// Releases what never reached the workers of ended streams, and signs those workers off that run nothing any more. What a heartbeat
/// has named is tried until it succeeds: its worker does not name a stream again of which it runs nothing, when the heartbeat was answered.
#[derive(Clone)]
pub(crate) struct EndedStreams {
    pub(crate) pool: Pool,
    pub(crate) reports: Reports,
    /// The node waits for these when it ends.
    pub(crate) tasks: TaskTracker,
    /// Cancelled when the node gives up: the sweep releases what is left.
    pub(crate) end: CancellationToken,
    /// How long a caller waits for the result: less than the time between two heartbeats.
    pub(crate) wait_max: Duration,
    pub(crate) unsettled: Arc<Unsettled>,
}

#[derive(Default)]
pub(crate) struct Unsettled {
    /// By worker.
    streams: Mutex<HashMap<i64, Running>>,
    /// Notified when some are settled.
    settled: Notify,
    /// Notified when a heartbeat names some again: what was in the way may be gone.
    again: Notify,
}

impl EndedStreams {
    /// Settles these streams, by worker. If that takes long, because a job is locked or the database does not answer, it goes on without
    /// the caller. Returns whether they are settled.
    ///
    /// # Errors
    /// Too many streams are being settled. The caller is to name these again.
    pub(crate) async fn settle(&self, ended: Vec<(i64, Running)>) -> Result<bool, NotWritten> {
        let workers: Vec<i64> = ended.iter().map(|(worker, _)| *worker).collect();
        let mut new = Vec::with_capacity(ended.len());
        {
            let mut unsettled = self.unsettled();
            if unsettled.len() + ended.len() > STREAMS_MAX {
                return Err(NotWritten::Unsettled);
            }
            for (worker, running) in ended {
                // One that is being settled already runs less by now.
                if unsettled.insert(worker, running).is_none() {
                    new.push(worker);
                }
            }
        }
        if new.len() < workers.len() {
            self.unsettled.again.notify_waiters();
        }
        if !new.is_empty() {
            self.tasks.spawn(self.clone().settle_all(new));
        }
        Ok(tokio::time::timeout(self.wait_max, self.settled(&workers)).await.is_ok())
    }

    /// Waits until these are settled.
    async fn settled(&self, workers: &[i64]) {
        loop {
            let settled = self.unsettled.settled.notified();
            let is_left = {
                let unsettled = self.unsettled();
                workers.iter().any(|worker| unsettled.contains_key(worker))
            };
            if !is_left {
                return;
            }
            settled.await;
        }
    }

    async fn settle_all(self, mut workers: Vec<i64>) {
        let mut retry_delay = RetryDelay::default();
        while !workers.is_empty() {
            let again = self.unsettled.again.notified();
            let mut left = Vec::new();
            for worker in workers {
                if !self.try_settle(worker).await {
                    left.push(worker);
                }
            }
            self.unsettled.settled.notify_waiters();
            if self.end.is_cancelled() {
                return;
            }
            workers = left;
            if !workers.is_empty() {
                tokio::select! {
                    () = retry_delay.wait(&self.end) => {}
                    () = again => {}
                }
            }
        }
    }

    /// False: it is to be tried again.
    async fn try_settle(&self, worker: i64) -> bool {
        let Some(running) = self.unsettled().get(&worker).cloned() else { return true };
        match self.release_and_retire(worker, &running).await {
            Ok(true) => {
                let mut unsettled = self.unsettled();
                let is_latest = unsettled.get(&worker) == Some(&running);
                if is_latest {
                    unsettled.remove(&worker);
                }
                is_latest
            }
            Ok(false) => false,
            Err(error) => {
                tracing::warn!(%error, worker, "cannot settle what an ended stream left, will retry");
                false
            }
        }
    }

    /// False: a job is locked. If it were left to the sweep, a crash would be counted of a job that never started.
    async fn release_and_retire(&self, worker: i64, running: &Running) -> Result<bool, NotWritten> {
        let reading = async |client: Arc<Session>| held(&*client, &[worker]).await;
        let holds = self.pool.run_within(STATEMENT_MAX, reading).await?;
        let claims = holds.iter().flat_map(|hold| &hold.claims);
        let unreceived: Vec<Claim> = claims.filter(|claim| !running.contains(claim)).copied().collect();
        if !unreceived.is_empty() {
            let results = self.reports.release(unreceived).await?;
            if results.contains(&SettleResult::Locked) {
                return Ok(false);
            }
        }
        if running.is_empty() {
            let retiring = async |client: Arc<Session>| retire(&*client, worker).await;
            self.pool.run_within(STATEMENT_MAX, retiring).await?;
        }
        Ok(true)
    }

    fn unsettled(&self) -> MutexGuard<'_, HashMap<i64, Running>> {
        self.unsettled.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
