//! Hints to other nodes: claims that they sent to their workers were settled through this node, so their slots are free.

use std::sync::{Arc, Mutex, PoisonError};

use pitwheel::Claim;
use pitwheel::engine::{Pool, hint_settled};
use tokio::sync::Notify;

/// Claims that wait to be sent. More than this are dropped: the other nodes find them when they compare their streams with the
/// database.
const WAITING_MAX: usize = 100_000;

#[derive(Clone, Default)]
pub(crate) struct SettledHints {
    waiting: Arc<Mutex<Vec<Claim>>>,
    arrived: Arc<Notify>,
}

impl SettledHints {
    /// Adds claims that were settled and not sent from here.
    pub(crate) fn add(&self, claims: Vec<Claim>) {
        if claims.is_empty() {
            return;
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() < WAITING_MAX {
            waiting.extend(claims);
            self.arrived.notify_one();
        }
    }

    /// Sends hints until it is dropped. One statement carries what arrived while the last one was sent.
    pub(crate) async fn run(self, pool: Pool) {
        loop {
            self.arrived.notified().await;
            let claims = std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
            if let Err(error) = pool.run(async |client| hint_settled(&*client, &claims).await).await {
                tracing::debug!(%error, claims = claims.len(), "hints for other nodes were not sent");
            }
        }
    }
}
