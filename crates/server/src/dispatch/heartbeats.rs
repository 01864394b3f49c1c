//! Heartbeats: one statement renews the leases of many workers.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use pitwheel::Claim;
use pitwheel::engine::{Pool, Session, cancel_requests, heartbeat};
use tokio::sync::{mpsc, oneshot};

use crate::dispatch::reports::NotWritten;
use crate::dispatch::streams::SharedStreams;
use crate::limits::STREAMS_MAX;

/// How long a heartbeat waits for others at most. Far below the time after which a worker would miss its lease.
const LINGER_MAX: Duration = Duration::from_millis(500);
/// With a short lease it waits less: this part of the time between two heartbeats.
const LINGER_PART: u32 = 10;

/// Heartbeats that wait for the loop: one of every stream that a node may have. More callers than this wait for the next
/// batch.
const QUEUE_MAX: usize = STREAMS_MAX;

/// One heartbeat, and where its result is awaited.
pub(crate) struct Heartbeat {
    workers: Vec<i64>,
    reply: oneshot::Sender<Result<Renewal, NotWritten>>,
}

/// What a worker learns from its heartbeat.
#[derive(Debug, Default)]
pub(crate) struct Renewal {
    /// Claims whose job is to be cancelled.
    pub(crate) cancelled: Vec<Claim>,
    /// Workers that were declared dead: their jobs were given to others.
    pub(crate) dead: Vec<i64>,
    /// Workers that are to finish what they run and exit.
    pub(crate) draining: Vec<i64>,
}

/// The sending side: renews leases through the loop of [`run`].
pub(crate) struct Heartbeats {
    sender: mpsc::Sender<Heartbeat>,
}

impl Heartbeats {
    pub(crate) fn new() -> (Heartbeats, mpsc::Receiver<Heartbeat>) {
        let (sender, receiver) = mpsc::channel(QUEUE_MAX);
        (Heartbeats { sender }, receiver)
    }

    /// Renews the leases of these workers, together with those of other heartbeats.
    pub(crate) async fn renew(&self, workers: Vec<i64>) -> Result<Renewal, NotWritten> {
        let (reply, replied) = oneshot::channel();
        let sent = self.sender.send(Heartbeat { workers, reply }).await;
        sent.map_err(|_| NotWritten::Stopping)?;
        replied.await.unwrap_or(Err(NotWritten::Stopping))
    }
}

/// Renews leases through a pool of their own until the node stops. `every` is the time between two heartbeats of a worker.
pub(crate) async fn run(
    (lease_pool, pool): (Pool, Pool),
    streams: SharedStreams,
    every: Duration,
    mut queue: mpsc::Receiver<Heartbeat>,
) {
    let linger = LINGER_MAX.min(every / LINGER_PART);
    while let Some(first) = queue.recv().await {
        tokio::time::sleep(linger).await;
        let mut batch = vec![first];
        while let Ok(heartbeat) = queue.try_recv() {
            batch.push(heartbeat);
        }
        renew_all((&lease_pool, &pool), &streams, batch).await;
    }
}

async fn renew_all((lease_pool, pool): (&Pool, &Pool), streams: &SharedStreams, batch: Vec<Heartbeat>) {
    let mut workers: Vec<i64> = batch.iter().flat_map(|heartbeat| &heartbeat.workers).copied().collect();
    workers.sort_unstable();
    workers.dedup();
    let renewing = async |client: Arc<Session>| heartbeat(&*client, &workers).await;
    let renewed = match lease_pool.run_or_borrow(pool, renewing).await {
        Ok(renewed) => renewed,
        Err(error) => {
            let error = NotWritten::from(error);
            for heartbeat in batch {
                let _ = heartbeat.reply.send(Err(error.clone()));
            }
            return;
        }
    };
    // Of a worker that is locked nothing is known.
    let locked: HashSet<i64> = renewed.locked.into_iter().collect();
    let alive: HashSet<i64> = renewed.alive.into_iter().collect();
    let is_dead = |worker: &&i64| !alive.contains(*worker) && !locked.contains(*worker);
    {
        let mut streams = streams.lock();
        workers.iter().filter(is_dead).for_each(|worker| streams.close(*worker));
    }
    let draining: HashSet<i64> = renewed.draining.into_iter().collect();
    let cancelled = cancelled(lease_pool, &alive).await;
    for Heartbeat { workers, reply } in batch {
        let claims = workers.iter().filter_map(|worker| cancelled.get(worker)).flatten().copied().collect();
        let renewal = Renewal {
            cancelled: claims,
            dead: workers.iter().filter(is_dead).copied().collect(),
            draining: workers.iter().filter(|worker| draining.contains(worker)).copied().collect(),
        };
        let _ = reply.send(Ok(renewal));
    }
}

/// The claims of these workers whose job is to be cancelled. By a statement of its own, after the renewal: a table that is locked, for
/// instance by a `vacuum full`, delays cancels, and no lease.
async fn cancelled(pool: &Pool, alive: &HashSet<i64>) -> HashMap<i64, Vec<Claim>> {
    let workers: Vec<i64> = alive.iter().copied().collect();
    let requests = pool.run(async |client| cancel_requests(&*client, &workers).await).await;
    let requests = requests.unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot read which jobs are to be cancelled; the next heartbeat will");
        Vec::new()
    });
    let mut cancelled: HashMap<i64, Vec<Claim>> = HashMap::new();
    for (worker, claim) in requests {
        cancelled.entry(worker).or_default().push(claim);
    }
    cancelled
}
