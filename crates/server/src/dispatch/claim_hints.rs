//! Hints to other nodes: the endings of claims that they sent to their workers were reported to this node, so their slots are free.

use std::sync::{Arc, Mutex, PoisonError};

use pitwheel::Claim;
use pitwheel::engine::{Pool, hint_reported, hint_settled};
use tokio::sync::Notify;

/// Claims that wait to be sent. More than this are dropped: the other nodes find them when they compare their streams with the
/// database.
const WAITING_MAX: usize = 100_000;

#[derive(Clone, Default)]
pub(crate) struct ClaimHints {
    waiting: Arc<Mutex<Waiting>>,
    arrived: Arc<Notify>,
}

#[derive(Default)]
struct Waiting {
    reported: Vec<Claim>,
    settled: Vec<Claim>,
}

impl ClaimHints {
    /// Adds claims that were reported here and not sent from here.
    pub(crate) fn reported(&self, claims: Vec<Claim>) {
        self.add(claims, |waiting| &mut waiting.reported);
    }

    /// Adds such claims when they are settled.
    pub(crate) fn settled(&self, claims: Vec<Claim>) {
        self.add(claims, |waiting| &mut waiting.settled);
    }

    fn add(&self, claims: Vec<Claim>, list: impl Fn(&mut Waiting) -> &mut Vec<Claim>) {
        if claims.is_empty() {
            return;
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let list = list(&mut waiting);
        if list.len() < WAITING_MAX {
            list.extend(claims);
            self.arrived.notify_one();
        }
    }

    /// Sends hints until it is dropped. One statement carries what arrived while the last one was sent.
    pub(crate) async fn run(self, pool: Pool) {
        loop {
            self.arrived.notified().await;
            let Waiting { reported, settled } =
                std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
            let sent = pool.run(async |client| {
                hint_reported(&*client, &reported).await?;
                hint_settled(&*client, &settled).await
            });
            if let Err(error) = sent.await {
                let claims = reported.len() + settled.len();
                tracing::debug!(%error, claims, "hints for other nodes were not sent");
            }
        }
    }
}
