//! One server process: its streams, and the loops that serve them all.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pitwheel::engine::{
    Ending, HintListener, Pool, Registration, RetryDelay, Settlement, alive_workers, cancel_requests, held,
    listen, pool_of, register, sweep,
};
use pitwheel::{Claim, Error, Pitwheel};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::auth::access::Access;
use crate::dispatch::beats::{self, Beats};
use crate::dispatch::group;
use crate::dispatch::reports::{self, Reports};
use crate::dispatch::streams::{Message, Streams};
use crate::observe::metrics;
use crate::observe::watch::{self, Watch};
use crate::options::Options;

/// Two claims, two settles, heartbeats and the look after the dead.
const CONNECTIONS: usize = 6;
/// Heartbeats per lease: five may fail before the sixth is too late.
const BEATS: u32 = 6;
/// Sweeps per lease.
const TICKS: u32 = 20;
/// If nobody swept for this part of a lease, nobody could renew either.
const GAP_PARTS: u32 = 4;
const UPKEEP: Duration = Duration::from_secs(5);
const PRUNE: Duration = Duration::from_secs(3600);
/// How often a stream that is full and silent is compared with the database.
const RECONCILE: Duration = Duration::from_secs(1);

pub(crate) struct Node {
    pub(crate) pool: Pool,
    pub(crate) options: Options,
    access: Arc<Access>,
    pub(crate) reports: Reports,
    pub(crate) beats: Beats,
    pub(crate) watch: Arc<Watch>,
    pitwheel: Pitwheel,
    name: String,
    streams: Mutex<Streams>,
    /// Somebody may want a running job stopped.
    cancel: Arc<Notify>,
    /// Ends when no more shall be claimed.
    stop: CancellationToken,
    /// Claims, and what gives back what they brought too late.
    claims: TaskTracker,
    /// Ends when nothing more will be reported.
    end: CancellationToken,
    loops: TaskTracker,
}

impl Node {
    pub(crate) fn start(
        pitwheel: Pitwheel,
        options: Options,
        access: Arc<Access>,
    ) -> Result<Arc<Node>, Error> {
        let (reports, report_queue) = Reports::new();
        let (beats, beat_queue) = Beats::new();
        let node = Arc::new(Node {
            pool: pool_of(&pitwheel, CONNECTIONS)?,
            options,
            access,
            reports,
            beats,
            watch: Arc::default(),
            pitwheel,
            name: format!("node {}", std::process::id()),
            streams: Mutex::default(),
            cancel: Arc::default(),
            stop: CancellationToken::new(),
            claims: TaskTracker::new(),
            end: CancellationToken::new(),
            loops: TaskTracker::new(),
        });
        node.loops.spawn(reports::run(node.clone(), report_queue));
        node.spawn(beats::run(node.clone(), beat_queue));
        node.spawn(listening(node.clone()));
        node.spawn(cancelling(node.clone()));
        node.spawn(sweeping(node.clone()));
        node.spawn(reconciling(node.clone()));
        node.spawn(upkeep());
        node.spawn(watch::run(node.watch.clone(), node.pitwheel.clone()));
        Ok(node)
    }

    /// Until the end of the node.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let end = self.end.clone();
        self.loops.spawn(async move {
            tokio::select! {
                () = task => {}
                () = end.cancelled() => {}
            }
        });
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn streams(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often workers shall send a heartbeat.
    pub(crate) fn heartbeat_every(&self) -> Duration {
        self.options.lease / BEATS
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Registers a worker and feeds its stream from now on.
    pub(crate) async fn open(
        self: &Arc<Node>,
        worker: Registration,
    ) -> Result<(i64, mpsc::UnboundedReceiver<Message>), Error> {
        let id = self.pool.run(async |client| register(&client, &worker).await).await?;
        pitwheel::metrics::expect(&worker.queues, &worker.kinds);
        let (sender, messages) = mpsc::unbounded_channel();
        let mut streams = self.streams();
        let (group, is_new) = streams.group(worker.queues, worker.kinds);
        streams.open(id, group.clone(), (worker.slots, worker.token), sender);
        drop(streams);
        if is_new {
            self.claims.spawn(group::run(self.clone(), group));
        }
        Ok((id, messages))
    }

    /// Of these workers, those live. The streams of the others end, so that they open new ones.
    pub(crate) fn heard(&self, workers: &[i64], living: &HashSet<i64>) {
        let mut streams = self.streams();
        streams.heard(living);
        workers.iter().filter(|worker| !living.contains(worker)).for_each(|worker| streams.close(*worker));
    }

    /// Gives back what was claimed and cannot be sent, however long the database is away.
    pub(crate) fn release(self: &Arc<Node>, claims: Vec<Claim>) {
        if claims.is_empty() {
            return;
        }
        let node = self.clone();
        self.claims.spawn(async move {
            let batch: Vec<Settlement> =
                claims.into_iter().map(|claim| Settlement { claim, ending: Ending::released() }).collect();
            let mut retry_delay = RetryDelay::default();
            while let Err(error) = node.reports.settle(batch.clone()).await {
                tracing::warn!(%error, jobs = batch.len(), "cannot give back what was not sent, will try again");
                retry_delay.wait(&node.end).await;
                if node.end.is_cancelled() {
                    return;
                }
            }
        });
    }

    /// Ends the streams and claims no more. Reports and heartbeats are still answered.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
        self.streams().close_all();
        self.watch.close();
    }

    /// Writes what is left to write.
    pub(crate) async fn finish(&self) {
        self.stop();
        self.claims.close();
        if tokio::time::timeout(self.options.lease, self.claims.wait()).await.is_err() {
            tracing::warn!("the database was away for too long: what was not given back waits for the sweep");
        }
        self.reports.close();
        self.end.cancel();
        self.loops.close();
        self.loops.wait().await;
    }
}

/// Wakes the claimers when something is due.
async fn listening(node: Arc<Node>) {
    let listener = {
        let node = node.clone();
        let cancel = node.cancel.clone();
        HintListener { due: Box::new(move |queue| node.streams().wake(queue)), cancel }
    };
    listen(&node.pool, listener).await;
}

/// Passes cancels on at once, when somebody hints at them; heartbeats do in any case.
async fn cancelling(node: Arc<Node>) {
    loop {
        node.cancel.notified().await;
        let workers = node.streams().workers();
        match node.pool.run(async |client| cancel_requests(&client, &workers).await).await {
            Ok(wanted) => node.streams().cancel(wanted),
            Err(error) => tracing::warn!(%error, "cannot see what shall be cancelled; heartbeats will"),
        }
    }
}

/// Declares dead who was silent for too long, gives back what they held, and prunes.
async fn sweeping(node: Arc<Node>) {
    let lease = node.options.lease;
    let (tick, gap_max) = (lease / TICKS, lease / GAP_PARTS);
    let mut next_prune = Instant::now();
    loop {
        let swept = node.pool.run(async |client| sweep(&client, tick, gap_max).await).await;
        match swept {
            Ok(swept)
                if !swept.dead.is_empty() || swept.released + swept.buried > 0 || swept.leases_extended =>
            {
                tracing::info!(?swept, "swept");
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "cannot sweep, will try again"),
        }
        if Instant::now() >= next_prune {
            let pruned = node.pitwheel.prune_history(node.options.keep_history).await;
            let pause = if pruned.is_ok() { PRUNE } else { Duration::from_secs(60) };
            next_prune = Instant::now() + pause;
        }
        tokio::time::sleep(tick).await;
    }
}

/// Keeps what is counted small between two scrapes.
async fn upkeep() {
    loop {
        tokio::time::sleep(UPKEEP).await;
        metrics::upkeep();
    }
}

/// Finds out what was reported to other nodes, and ends the streams of workers that were declared dead, or whose token was
/// revoked.
async fn reconciling(node: Arc<Node>) {
    loop {
        tokio::time::sleep(RECONCILE).await;
        let (silent, claims) = {
            let mut streams = node.streams();
            let silent = streams.silent();
            let claims = streams.claims_of(&silent);
            (silent, claims)
        };
        if !silent.is_empty() {
            match node.pool.run(async |client| held(&*client, &silent).await).await {
                Ok(held) => node.streams().reconcile(&silent, &claims, &held),
                Err(error) => tracing::warn!(%error, "cannot see what streams hold, will try again"),
            }
        }
        let tokens = node.streams().tokens();
        if !tokens.is_empty() {
            match node.access.revoked(&tokens).await {
                Ok(revoked) => node.streams().close_tokens(&revoked),
                Err(error) => tracing::warn!(%error, "cannot see which tokens are good, will try again"),
            }
        }
        let unheard = node.streams().unheard(node.options.lease);
        if !unheard.is_empty() {
            match node.pool.run(async |client| alive_workers(&*client, &unheard).await).await {
                Ok(living) => node.heard(&unheard, &living.into_iter().collect()),
                Err(error) => tracing::warn!(%error, "cannot see which workers live, will try again"),
            }
        }
    }
}
