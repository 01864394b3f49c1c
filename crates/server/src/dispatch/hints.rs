//! Reacts to hints of the database: a job is due, a running job is to be cancelled, or a worker is to be quiet.

use std::sync::Arc;

use pitwheel::Claim;
use pitwheel::engine::{HintListener, Pool, cancel_requests, listen};
use tokio::sync::Notify;

use crate::dispatch::streams::SharedStreams;

/// Wakes the claimers when a job is due, and frees the slots of claims that were reported to other nodes. Notifies `cancel` when
/// a running job is to be cancelled, and `command` when a worker was made quiet, drained or resumed.
pub(crate) async fn listen_for_hints(
    pool: Pool,
    streams: SharedStreams,
    cancel: Arc<Notify>,
    command: Arc<Notify>,
) {
    let own = streams.clone();
    let due = Box::new(move |queue: Option<&str>| own.lock().wake(queue));
    let own = streams.clone();
    let reported = Box::new(move |claims: Vec<Claim>| own.lock().reported(claims.into_iter()));
    let own = streams.clone();
    let settled = Box::new(move |claims: Vec<Claim>| own.lock().ended(claims.into_iter()));
    let completed =
        Box::new(move |claims: Vec<Claim>| streams.lock().completed_by_handlers(claims.into_iter()));
    listen(&pool, HintListener { due, cancel, command, reported, settled, completed }).await;
}

/// Sends cancel requests to the workers as soon as a hint arrives. Without hints, heartbeats carry them.
pub(crate) async fn forward_cancels(pool: Pool, streams: SharedStreams, cancel: Arc<Notify>) {
    loop {
        cancel.notified().await;
        let workers = streams.lock().workers();
        match pool.run(async |client| cancel_requests(&client, &workers).await).await {
            Ok(requests) => streams.lock().send_cancels(requests),
            Err(error) => {
                tracing::warn!(%error, "cannot read cancel requests; the next heartbeats will carry them");
            }
        }
    }
}
