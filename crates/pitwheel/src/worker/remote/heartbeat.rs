//! Heartbeats: they renew the leases of all streams, and bring cancels and drains.

use std::collections::HashMap;
use std::iter;
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

/// The server refuses a heartbeat that names more streams.
const STREAMS_MAX: usize = 1000;

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

    /// Heartbeats for all streams, open and ended: one, unless very many have ended.
    pub(super) async fn heartbeat(&self) -> Result<(), tonic::Status> {
        for part in parts(self.heartbeat_request()) {
            self.send_heartbeat(part).await?;
        }
        Ok(())
    }

    async fn send_heartbeat(&self, request: v1::HeartbeatRequest) -> Result<(), tonic::Status> {
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
        let mut ended: HashMap<i64, Vec<v1::Claim>> =
            state.ended.iter().map(|&worker| (worker, Vec::new())).collect();
        for (claim, held) in &state.held {
            if let Some(holding) = ended.get_mut(&held.worker) {
                holding.push(claim_message(*claim));
            }
        }
        let ended = ended.into_iter().map(|(worker_id, holding)| v1::EndedStream { worker_id, holding });
        v1::HeartbeatRequest { worker_ids: state.open.keys().copied().collect(), ended: ended.collect() }
    }
}

/// Heartbeats that the server does not refuse for their size, the open streams first. None: there is nothing to say.
fn parts(request: v1::HeartbeatRequest) -> Vec<v1::HeartbeatRequest> {
    let v1::HeartbeatRequest { worker_ids, mut ended } = request;
    let room = STREAMS_MAX.saturating_sub(worker_ids.len());
    let rest = ended.split_off(room.min(ended.len()));
    let rest = rest.chunks(STREAMS_MAX);
    let rest = rest.map(|ended| v1::HeartbeatRequest { worker_ids: Vec::new(), ended: ended.to_vec() });
    let first = v1::HeartbeatRequest { worker_ids, ended };
    let parts = iter::once(first).chain(rest);
    parts.filter(|part| !part.worker_ids.is_empty() || !part.ended.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_ended_streams_are_named_in_several_heartbeats() {
        let ended = |worker_id| v1::EndedStream { worker_id, holding: Vec::new() };
        let request = |open: i64, over: i64| v1::HeartbeatRequest {
            worker_ids: (0..open).collect(),
            ended: (open..open + over).map(ended).collect(),
        };
        let sizes = |open, over| -> Vec<(usize, usize)> {
            let parts = parts(request(open, over));
            parts.iter().map(|part| (part.worker_ids.len(), part.ended.len())).collect()
        };
        assert!(sizes(0, 0).is_empty());
        assert_eq!(sizes(2, 998), [(2, 998)]);
        assert_eq!(sizes(2, 2500), [(2, 998), (0, 1000), (0, 502)]);
        assert_eq!(sizes(0, 1001), [(0, 1000), (0, 1)]);
    }
}
