//! One server process: its streams, and the loops that serve them.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use pitwheel::engine::{
    Pool, RENEWALS, Registration, Session, lease_limit, maintain, prepare_history, register, retire,
    workers_of_token,
};
use pitwheel::{Claim, Error, Pitwheel};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::auth::tokens::Tokens;
use crate::dispatch::claim_hints::ClaimHints;
use crate::dispatch::claimer::{self, GroupSink};
use crate::dispatch::ended::{EndedStreams, Running};
use crate::dispatch::heartbeats::{self, Heartbeats};
use crate::dispatch::hints::{forward_cancels, listen_for_hints};
use crate::dispatch::reconcile::{self, Reconciler};
use crate::dispatch::release::Releaser;
use crate::dispatch::reports::{NotWritten, Reports};
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

/// For the hints after reports: reports must not wait for callers of the API.
const HINT_CONNECTIONS: usize = 1;
/// A hint that takes longer is given up: polling finds every job without it.
const HINT_MAX: Duration = Duration::from_secs(2);
/// A start does not wait longer for partitions. They exist already, but for the first start in a week.
const PREPARE_MAX: Duration = Duration::from_secs(5);
/// A heartbeat waits this part of the time between two until what ended streams left is settled.
const ENDED_PART: u32 = 4;
/// How long a node that ends writes what is left. The sweep gives back what was not written by then.
const FINISH_MAX: Duration = Duration::from_secs(10);

pub(crate) struct Node {
    pub(crate) pool: Pool,
    pub(crate) lease: Duration,
    /// Whether workers can open streams.
    pub(crate) serves_workers: bool,
    pub(crate) streams: SharedStreams,
    pub(crate) reports: Reports,
    pub(crate) claim_hints: ClaimHints,
    pub(crate) heartbeats: Heartbeats,
    pub(crate) ended: EndedStreams,
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
    /// Cancelled when what is left to write is given up.
    give_up: CancellationToken,
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
        let heartbeat_every = lease / RENEWALS;
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
            ended: EndedStreams {
                pool: pool.clone(),
                reports: reports.clone(),
                tasks: claims.clone(),
                end: end.clone(),
                wait_max: heartbeat_every / ENDED_PART,
                unsettled: Arc::default(),
            },
            reports,
            claim_hints: ClaimHints::default(),
            heartbeats,
            owner_pool,
            name: format!("node {}", std::process::id()).into(),
            stop: CancellationToken::new(),
            claims,
            end: end.clone(),
            give_up: CancellationToken::new(),
            loops: TaskTracker::new(),
        });
        let hints = node.claim_hints.clone();
        node.spawn(hints.clone().run(pool.clone()));
        let hinting = pitwheel.for_probes(HINT_CONNECTIONS, HINT_MAX)?;
        let writing = node.reports.clone().run(hinting, pool.clone(), streams.clone(), hints);
        node.loops.spawn(node.give_up.clone().run_until_cancelled_owned(writing));
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

    /// Creates the partitions of the history, before the first report is written: the partition of a day cannot be created any more when
    /// the default partition has rows of that day.
    pub(crate) async fn prepare_history(&self) {
        let preparing = async |client: Arc<Session>| prepare_history(&*client).await;
        if let Err(error) = self.pool.run_within(PREPARE_MAX, preparing).await {
            // The maintenance of any node tries it again.
            tracing::warn!(%error, "cannot create the partitions of the history");
        }
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
    ) -> Result<(i64, mpsc::Receiver<StreamMessage>), NotWritten> {
        let id = self.pool.run(async |client| register(&client, &worker).await).await?;
        let opened = self.open_registered(id, place, worker, options);
        if opened.is_none() {
            // It never had a job. If it is not signed off, it is forgotten when its lease expires.
            self.pool.run(async |client| retire(&client, id).await).await?;
        }
        Ok((id, opened.ok_or(NotWritten::Stopping)?))
    }

    /// `None`: the node has stopped meanwhile, and nothing would end the stream.
    fn open_registered(
        &self,
        id: i64,
        place: Place,
        worker: Registration,
        options: StreamOptions,
    ) -> Option<mpsc::Receiver<StreamMessage>> {
        let (sender, messages) = stream_channel(worker.slots);
        let mut streams = self.streams.lock();
        if self.is_stopping() {
            return None;
        }
        pitwheel::metrics::expect(&worker.queues, &worker.kinds);
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
        Some(messages)
    }

    /// Ends streams that their workers report as broken: this node may not have noticed yet and must not send more. Returns whether what
    /// they left is settled.
    pub(crate) async fn end_streams(&self, ended: Vec<(i64, Running)>) -> Result<bool, NotWritten> {
        {
            let mut streams = self.streams.lock();
            ended.iter().for_each(|(worker, _)| streams.close(*worker));
        }
        self.ended.settle(ended).await
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
        let writing = async {
            self.claims.wait().await;
            self.end_loops().await;
        };
        if tokio::time::timeout(FINISH_MAX, writing).await.is_err() {
            tracing::warn!("the database did not answer: jobs that were not released wait for the sweep");
            self.give_up.cancel();
            self.end_loops().await;
        }
    }

    /// Writes the reports that are queued, and ends every loop.
    async fn end_loops(&self) {
        self.reports.close();
        self.end.cancel();
        self.loops.close();
        self.loops.wait().await;
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use anyhow::Result;
    use pitwheel_testkit::{TestDb, wait_until};

    use super::*;

    const LEASE: Duration = Duration::from_secs(600);

    /// A statement that changes a job has no answer.
    pub(crate) const SLEEP: &str = "
        create function sleep() returns trigger language plpgsql as $$ begin perform pg_sleep(120); return new; end $$;
        create trigger sleep before update on pitwheel.job for each row execute function sleep()";

    pub(crate) fn node(db: &TestDb) -> Result<Arc<Node>> {
        let tokens = Arc::new(Tokens::new(db.pitwheel().pool_for_loops(1, Duration::MAX)?));
        Ok(Node::start(db.pitwheel(), &Options { lease: LEASE, ..Options::default() }, tokens)?)
    }

    /// A worker that gets only jobs that are claimed by their ids.
    pub(crate) fn worker() -> Registration {
        Registration {
            name: "test".to_owned(),
            lease: LEASE,
            transport: "grpc",
            queues: Vec::new(),
            kinds: vec!["work".to_owned()],
            slots: 1,
            token: None,
        }
    }

    #[tokio::test]
    async fn a_stream_whose_worker_was_registered_while_the_node_stopped_is_not_opened() -> Result<()> {
        let db = TestDb::new().await?;
        let node = node(&db)?;
        let place = node.streams.take_place(None).expect("there is room");
        node.stop();
        let opened = node.open(place, worker(), StreamOptions::default()).await;
        assert!(matches!(opened, Err(NotWritten::Stopping)));
        assert_eq!(node.streams.lock().len(), 0);
        let alive = "select count(*) from pitwheel.worker where dead_at is null";
        assert_eq!(db.count(alive).await?, 0, "it was signed off");
        node.finish().await;
        Ok(())
    }

    #[tokio::test]
    async fn a_node_ends_although_the_database_does_not_answer() -> Result<()> {
        let db = TestDb::new().await?;
        let node = node(&db)?;
        db.job().insert().await?;
        let claimed = db.claim_one().await?;
        db.client().await?.batch_execute(SLEEP).await?;
        node.release(vec![claimed.claim]);
        let sleeping = "select count(*) from pg_stat_activity where wait_event = 'PgSleep' and datname = current_database()";
        wait_until("it is being released", async || Ok(db.count(sleeping).await? == 1)).await?;
        tokio::time::timeout(2 * FINISH_MAX, node.finish()).await?;
        Ok(())
    }
}
