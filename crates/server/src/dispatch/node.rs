//! One server process: its streams, and the loops that serve them.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use pitwheel::engine::{
    Pool, RENEWALS, Registration, Session, lease_limit, maintain, register, workers_of_token,
};
use pitwheel::{Claim, Error, Pitwheel};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::auth::tokens::Tokens;
use crate::dispatch::claim_hints::ClaimHints;
use crate::dispatch::claimer::{self, GroupSink};
use crate::dispatch::heartbeats::{self, Heartbeats};
use crate::dispatch::hints::{forward_cancels, listen_for_hints};
use crate::dispatch::reconcile::{self, Reconciler};
use crate::dispatch::release::Releaser;
use crate::dispatch::reports::Reports;
use crate::dispatch::stream::{StreamMessage, StreamOptions, stream_channel};
use crate::dispatch::streams::SharedStreams;
use crate::dispatch::streams::places::Place;
use crate::options::Options;

/// Two claims and two settles at a time, one comparison of streams with the database, and one hint to other nodes.
const CONNECTIONS: usize = 6;
/// One for heartbeats and one for sweeps, so that nothing else can delay a renewal.
const LEASE_CONNECTIONS: usize = 2;
/// For what a lease waits for before it is renewed: whether the worker is the caller's own.
const OWNER_CONNECTIONS: usize = 1;

pub(crate) struct Node {
    pub(crate) pool: Pool,
    pub(crate) lease: Duration,
    /// Whether workers can open streams.
    pub(crate) serves_workers: bool,
    pub(crate) streams: SharedStreams,
    pub(crate) reports: Reports,
    pub(crate) claim_hints: ClaimHints,
    pub(crate) heartbeats: Heartbeats,
    /// For heartbeats: whose workers they name.
    owner_pool: Pool,
    releaser: Releaser,
    /// The name in logs.
    name: Arc<str>,
    /// Cancelled when the node claims no more.
    stop: CancellationToken,
    /// Claimers and releases.
    claims: TaskTracker,
    /// Cancelled when nothing is left to write.
    end: CancellationToken,
    loops: TaskTracker,
}

impl Node {
    pub(crate) fn start(
        pitwheel: &Pitwheel,
        options: &Options,
        tokens: Arc<Tokens>,
    ) -> Result<Arc<Node>, Error> {
        let lease_pool = pitwheel.pool_for_loops(LEASE_CONNECTIONS, lease_limit(options.lease))?;
        let owner_pool = pitwheel.pool_for_loops(OWNER_CONNECTIONS, lease_limit(options.lease))?;
        let pool = pitwheel.pool_for_loops(CONNECTIONS, Duration::MAX)?;
        let pool = pool.sharing_with(&lease_pool).sharing_with(&owner_pool);
        let (lease, keep_history) = (options.lease, options.keep_history);
        let (streams, claims) = (SharedStreams::default(), TaskTracker::new());
        let reports = Reports::new();
        let (heartbeats, heartbeat_queue) = Heartbeats::new();
        let end = CancellationToken::new();
        let node = Arc::new(Node {
            pool: pool.clone(),
            lease,
            serves_workers: options.serve_workers,
            streams: streams.clone(),
            releaser: Releaser::new(reports.clone(), claims.clone(), end.clone()),
            reports,
            claim_hints: ClaimHints::default(),
            heartbeats,
            owner_pool,
            name: format!("node {}", std::process::id()).into(),
            stop: CancellationToken::new(),
            claims,
            end: end.clone(),
            loops: TaskTracker::new(),
        });
        let hints = node.claim_hints.clone();
        node.spawn(hints.clone().run(pool.clone()));
        let reports = node.reports.clone();
        node.loops.spawn(reports.run(pitwheel.clone(), pool.clone(), streams.clone(), hints));
        node.spawn(heartbeats::run(
            (lease_pool.clone(), pool.clone()),
            streams.clone(),
            node.heartbeat_every(),
            heartbeat_queue,
        ));
        if !options.serve_workers {
            return Ok(node);
        }
        let (cancel, command) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        node.spawn(listen_for_hints(pool.clone(), streams.clone(), cancel.clone(), command.clone()));
        node.spawn(forward_cancels(pool.clone(), streams.clone(), cancel));
        node.spawn(reconcile::run(Reconciler { pool: pool.clone(), streams: streams.clone(), command }));
        node.spawn(async move {
            let close = |invalid: &HashSet<i64>| streams.lock().close_tokens(invalid);
            tokens.close_streams(|| streams.lock().tokens(), close).await;
        });
        let name = node.name.clone();
        node.spawn(async move { maintain((&pool, &lease_pool), &name, lease, keep_history, &end).await });
        Ok(node)
    }

    /// Runs a loop until the end of the node.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let end = self.end.clone();
        self.loops.spawn(async move {
            tokio::select! {
                () = task => {}
                () = end.cancelled() => {}
            }
        });
    }

    /// How often a worker must send a heartbeat.
    pub(crate) fn heartbeat_every(&self) -> Duration {
        self.lease / RENEWALS
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Runs a claim to its end, whatever becomes of the caller.
    pub(crate) fn spawn_claim<T: Send + 'static>(
        &self,
        claim: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.claims.spawn(claim)
    }

    /// Which of these workers were opened with this token. For a heartbeat: it waits neither for other calls nor longer than a lease allows.
    pub(crate) async fn renewable(&self, token: i64, workers: &[i64]) -> Result<Vec<i64>, Error> {
        let reading = async |client: Arc<Session>| workers_of_token(&*client, token, workers).await;
        self.owner_pool.run_or_borrow(&self.pool, reading).await
    }

    /// Registers a worker and opens its stream. Returns the worker's id and what is sent to it. A worker without queues gets only jobs
    /// that are claimed by their ids.
    pub(crate) async fn open(
        &self,
        place: Place,
        worker: Registration,
        options: StreamOptions,
    ) -> Result<(i64, mpsc::Receiver<StreamMessage>), Error> {
        let id = self.pool.run(async |client| register(&client, &worker).await).await?;
        pitwheel::metrics::expect(&worker.queues, &worker.kinds);
        let (sender, messages) = stream_channel(worker.slots);
        let mut streams = self.streams.lock();
        let has_queues = !worker.queues.is_empty();
        let (group, is_new) = streams.group(worker.queues, worker.kinds);
        streams.open(id, group.clone(), options, sender);
        place.opened(&mut streams);
        drop(streams);
        if is_new && has_queues {
            self.claims.spawn(claimer::run(GroupSink {
                node_name: self.name.clone(),
                pool: self.pool.clone(),
                streams: self.streams.clone(),
                group,
                releaser: self.releaser.clone(),
            }));
        }
        Ok((id, messages))
    }

    /// Gives back claims that were not sent.
    pub(crate) fn release(&self, claims: Vec<Claim>) {
        self.releaser.release(claims);
    }

    /// Ends the streams and claims no more. Reports and heartbeats are still answered.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
        self.streams.lock().close_all();
    }

    /// Writes what is left to write, then ends every loop.
    pub(crate) async fn finish(&self) {
        self.stop();
        self.claims.close();
        if tokio::time::timeout(self.lease, self.claims.wait()).await.is_err() {
            tracing::warn!("the database did not answer: jobs that were not released wait for the sweep");
        }
        self.reports.close();
        self.end.cancel();
        self.loops.close();
        self.loops.wait().await;
    }
}
