//! Hints to other nodes: the endings of claims that they sent to their workers were reported to this node, so their slots are free.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pitwheel::Claim;
use pitwheel::engine::{Pool, hint_completed, hint_reported, hint_settled};
use tokio::sync::Notify;

/// Claims that wait to be sent. More than this are dropped: the other nodes find them when they compare their streams with the
/// database.
const WAITING_MAX: usize = 100_000;
/// How long settled claims wait for others. No slot waits for them: it became free when the ending was reported.
const SETTLED_LINGER: Duration = Duration::from_millis(20);

#[derive(Clone, Default)]
pub(crate) struct ClaimHints {
    reported: Arc<Waiting>,
    settled: Arc<Waiting>,
    completed: Arc<Waiting>,
}

impl ClaimHints {
    /// Adds claims that were reported here and not sent from here.
    pub(crate) fn reported(&self, claims: Vec<Claim>) {
        self.reported.add(claims);
    }

    /// Adds such claims when they are settled.
    pub(crate) fn settled(&self, claims: Vec<Claim>) {
        self.settled.add(claims);
    }

    /// Adds such claims when their handlers have completed the jobs.
    pub(crate) fn completed(&self, claims: Vec<Claim>) {
        self.completed.add(claims);
    }

    /// Sends hints until it is dropped. One statement carries what arrived while the last one was sent.
    pub(crate) async fn run(self, pool: Pool) {
        let reported = async {
            loop {
                self.reported.arrived.notified().await;
                let claims = self.reported.take();
                let sent = pool.run(async |client| hint_reported(&*client, &claims).await).await;
                log(sent, claims.len());
            }
        };
        let settled = async {
            loop {
                self.settled.arrived.notified().await;
                tokio::time::sleep(SETTLED_LINGER).await;
                let claims = self.settled.take();
                let sent = pool.run(async |client| hint_settled(&*client, &claims).await).await;
                log(sent, claims.len());
            }
        };
        let completed = async {
            loop {
                self.completed.arrived.notified().await;
                let claims = self.completed.take();
                let sent = pool.run(async |client| hint_completed(&*client, &claims).await).await;
                log(sent, claims.len());
            }
        };
        tokio::join!(reported, settled, completed);
    }
}

fn log(sent: Result<(), pitwheel::Error>, claims: usize) {
    if let Err(error) = sent {
        tracing::debug!(%error, claims, "hints for other nodes were not sent");
    }
}

#[derive(Default)]
struct Waiting {
    claims: Mutex<Vec<Claim>>,
    arrived: Notify,
}

impl Waiting {
    fn add(&self, claims: Vec<Claim>) {
        if claims.is_empty() {
            return;
        }
        let mut waiting = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() < WAITING_MAX {
            waiting.extend(claims);
            self.arrived.notify_one();
        }
    }

    fn take(&self) -> Vec<Claim> {
        std::mem::take(&mut *self.claims.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
