//! Heartbeats: they renew the leases of all streams, and bring cancels and drains.

use std::time::{Duration, Instant};

use pitwheel_proto::v1;
use tokio_util::sync::CancellationToken;

use crate::engine::retry::RetryDelay;
use crate::worker::remote::core::Remote;
use crate::worker::remote::message::claim_message;

/// The interval until the first stream is open and the server has said its own.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// A server with a very short lease is given this long to answer.
const HEARTBEAT_MIN: Duration = Duration::from_millis(500);

/// Sends heartbeats until it is dropped.
pub(super) async fn run(remote: &Remote) {
    let mut retry_delay = RetryDelay::default();
    loop {
        let sent = remote.heartbeat().await;
        let every = remote.heartbeat_every();
        match sent {
            Ok(()) => {
                retry_delay.reset();
                tokio::select! {
                    () = tokio::time::sleep(every) => {}
                    () = remote.welcomed.notified() => {}
                }
            }
            Err(status) => {
                tracing::warn!(error = %status.message(), worker = remote.name, "the heartbeat failed, will try again");
                // After an outage the leases may have little more left than this.
                let _ = tokio::time::timeout(every, retry_delay.wait(&CancellationToken::new())).await;
            }
        }
    }
}

impl Remote {
    fn heartbeat_every(&self) -> Duration {
        self.state().heartbeat_every.unwrap_or(HEARTBEAT)
    }

    /// One heartbeat for all streams, open and ended.
    pub(super) async fn heartbeat(&self) -> Result<(), tonic::Status> {
        let request = self.heartbeat_request();
        if request.worker_ids.is_empty() && request.ended.is_empty() {
            return Ok(());
        }
        let without_jobs = request.ended.iter().filter(|ended| ended.holding.is_empty());
        let over: Vec<i64> = without_jobs.map(|ended| ended.worker_id).collect();
        let (named, sent) = (request.worker_ids.clone(), Instant::now());
        let mut request = tonic::Request::new(request);
        // Given up after the time between two, so that one call without an answer does not cost the leases.
        request.set_timeout(self.heartbeat_every().max(HEARTBEAT_MIN));
        let response = self.client().heartbeat(request).await?.into_inner();
        self.cancel(&response.cancelled);
        if !response.draining_worker_ids.is_empty() {
            self.stop.cancel();
        }
        let mut state = self.state();
        for worker in over {
            state.ended.remove(&worker);
        }
        for worker in named.iter().filter(|worker| !response.dead_worker_ids.contains(worker)) {
            if let Some(stream) = state.open.get_mut(worker) {
                stream.alive.proved(sent);
            }
        }
        for dead in response.dead_worker_ids {
            if let Some(stream) = state.open.get(&dead) {
                tracing::warn!(
                    worker = self.name,
                    "declared dead while alive: its jobs are given to others, and it opens a new stream"
                );
                stream.declared_dead.cancel();
            }
            state.ended.remove(&dead);
            let lost = state.held.values().filter(|held| held.worker == dead);
            lost.for_each(|held| held.context.cancel(false));
        }
        Ok(())
    }

    fn heartbeat_request(&self) -> v1::HeartbeatRequest {
        let state = self.state();
        let holding = |worker: i64| {
            let held = state.held.iter().filter(move |(_, held)| held.worker == worker);
            held.map(|(claim, _)| claim_message(*claim)).collect()
        };
        let ended = state.ended.iter();
        let ended = ended.map(|&worker_id| v1::EndedStream { worker_id, holding: holding(worker_id) });
        v1::HeartbeatRequest { worker_ids: state.open.keys().copied().collect(), ended: ended.collect() }
    }
}
