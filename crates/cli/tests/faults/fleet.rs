//! Two nodes, three worker processes, two streams by hand, and a load that keeps all of them busy.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use pitwheel::{Job, NewJob, Pitwheel};
use pitwheel_testkit::{ChildProcess, Nap, ScratchFolder, TestDb, connect, wait_until};
use tokio::task::JoinHandle;
use tokio_postgres::Client;

use crate::nodes::{start_node, url};
use crate::support::Node;
use crate::wire_worker::WireWorker;
use crate::worker_process::{start_library, start_remote};

/// Slots of the two streams by hand: most of the room is left when the smaller one gets nothing.
const STREAM_SLOTS: [u32; 2] = [20, 5];
pub(crate) const KIND: &str = Nap::KIND;
pub(crate) const WIRE_QUEUE: &str = "wire";
/// The length of a job. All slots together run 220 jobs in a second, a third of what two cores can run in a debug build: the
/// slots set the pace, not the machine.
pub(crate) const NAP: Duration = Duration::from_millis(250);
/// Ticks of the clock per nap.
const NAP_PARTS: u32 = 5;
/// Jobs of each queue that wait or run at any time.
const AHEAD: i64 = 1000;
/// The file in the folder to which handlers add the ids of their jobs at their end.
const ENDED: &str = "ended";
const QUEUES: [&str; 2] = ["default", WIRE_QUEUE];
const DONE: &str = "select count(*) filter (where queue = 'default'), count(*) filter (where queue = 'wire')
    from pitwheel.job_history";

pub(crate) struct Fleet {
    db: TestDb,
    client: Client,
    folder: ScratchFolder,
    first_node: Node,
    second_node: Option<Node>,
    /// A worker process at the second node, and one at the database.
    pub(crate) remote_worker: ChildProcess,
    pub(crate) library_worker: ChildProcess,
    other_worker: ChildProcess,
    /// Two streams at the first node.
    pub(crate) large_stream: WireWorker,
    pub(crate) small_stream: WireWorker,
    load: Load,
    clock: NapClock,
}

/// Jobs per second, of the queue `default` and of the queue `wire`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Throughput([f64; 2]);

impl Fleet {
    pub(crate) async fn start() -> Result<Fleet> {
        let db = TestDb::new().await?;
        let folder = ScratchFolder::create()?;
        let first_node = start_node(&db, &folder, "127.0.0.1:0")?;
        let second_node = start_node(&db, &folder, "127.0.0.1:0")?;
        let (first, second) = (url(&first_node), url(&second_node));
        let ended = folder.path().join(ENDED);
        let remote_worker = start_remote(&second, Some(&ended))?;
        let library_worker = start_library(db.url(), Some(&ended))?;
        let other_worker = start_remote(&first, Some(&ended))?;
        let large_stream = WireWorker::start(&first, &second, STREAM_SLOTS[0]).await?;
        let small_stream = WireWorker::start(&first, &second, STREAM_SLOTS[1]).await?;
        let load = Load::start(&db).await?;
        let fleet = Fleet {
            client: db.client().await?,
            db,
            folder,
            first_node,
            second_node: Some(second_node),
            remote_worker,
            library_worker,
            other_worker,
            large_stream,
            small_stream,
            load,
            clock: NapClock::start(),
        };
        let busy = "select count(distinct holder) from pitwheel.job";
        wait_until("all five workers run jobs", async || Ok(fleet.db.count(busy).await? == 5)).await?;
        Ok(fleet)
    }

    pub(crate) fn pitwheel(&self) -> &Pitwheel {
        self.db.pitwheel()
    }

    pub(crate) async fn connect(&self) -> Result<Client> {
        self.db.client().await
    }

    async fn done(&self) -> Result<[i64; 2]> {
        let row = self.client.query_one(DONE, &[]).await?;
        Ok([row.get(0), row.get(1)])
    }

    pub(crate) async fn throughput(&self, over: Duration) -> Result<Throughput> {
        let (started, before) = (self.clock.seconds(), self.done().await?);
        tokio::time::sleep(over).await; // the time over which is counted
        let (after, seconds) = (self.done().await?, self.clock.seconds() - started);
        Ok(Throughput([0, 1].map(|queue| (after[queue] - before[queue]) as f64 / seconds)))
    }

    /// Prints what the fault cost, and fails if it cost too much, or a worker was declared dead or has ended.
    pub(crate) async fn judge(&mut self, fault: &str, before: Throughput, during: Throughput) -> Result<()> {
        self.large_stream.check()?;
        self.small_stream.check()?;
        for worker in [&mut self.remote_worker, &mut self.library_worker, &mut self.other_worker] {
            ensure!(!worker.has_ended()?, "{fault}: a worker has ended");
        }
        for (queue, (before, during)) in QUEUES.iter().zip(before.0.into_iter().zip(during.0)) {
            println!("{fault}: queue {queue}: {before:.0} jobs/s before, {during:.0} during");
            ensure!(
                during >= crate::LEFT_MIN * before,
                "{fault}: {before:.0} jobs/s became {during:.0} in the queue {queue}"
            );
        }
        // One that signs off has a lease left.
        let dead = "select count(*) from pitwheel.worker where dead_at >= lease_until";
        ensure!(self.db.count(dead).await? == 0, "{fault}: a live worker was declared dead");
        Ok(())
    }

    /// Starts the worker at the second node again, which has ended.
    pub(crate) fn start_remote_worker(&mut self) -> Result<()> {
        ensure!(self.remote_worker.has_ended()?, "the remote worker has not ended");
        let node = self.second_node.as_ref().map(url).unwrap_or_default();
        self.remote_worker = start_remote(&node, Some(&self.folder.path().join(ENDED)))?;
        Ok(())
    }

    /// Starts the worker at the database again, which has ended.
    pub(crate) fn start_library_worker(&mut self) -> Result<()> {
        ensure!(self.library_worker.has_ended()?, "the library worker has not ended");
        self.library_worker = start_library(self.db.url(), Some(&self.folder.path().join(ENDED)))?;
        Ok(())
    }

    /// Stops the second node and starts it again at the same address.
    pub(crate) fn restart_second_node(&mut self) -> Result<()> {
        if let Some(node) = self.second_node.take() {
            let address = node.address.to_string();
            let code = node.end("TERM").map_err(|error| anyhow!("{error}"))?;
            ensure!(code == Some(0), "the node ended with {code:?}");
            self.second_node = Some(start_node(&self.db, &self.folder, &address)?);
        }
        Ok(())
    }

    /// Ends the load and checks that every job was settled once.
    pub(crate) async fn finish(self) -> Result<()> {
        let enqueued = self.load.stop().await?;
        wait_until("all jobs are done", async || {
            Ok(self.db.count("select count(*) from pitwheel.job").await? == 0)
        })
        .await?;
        let history = "select count(*), count(distinct id), count(*) filter (where state = 'done'),
            count(*) filter (where crashes > 0 or attempt > 1) from pitwheel.job_history";
        let row = self.client.query_one(history, &[]).await?;
        let [settled, jobs, done, charged]: [i64; 4] = [0, 1, 2, 3].map(|column| row.get(column));
        println!("{enqueued} jobs enqueued, {settled} settled");
        assert_eq!((settled, jobs, done), (enqueued, enqueued, enqueued), "lost, or settled twice");
        assert_eq!(charged, 0, "a job was charged an attempt or a crash");
        let done: i64 = self.client.query_one(DONE, &[]).await?.get(0);
        check_ends(&self.folder.path().join(ENDED), done)?;
        let code = self.first_node.end("TERM").map_err(|error| anyhow!("{error}"))?;
        assert_eq!(code, Some(0));
        Ok(())
    }
}

/// A job whose handler has ended is not released and run again, however short the grace was.
fn check_ends(file: &Path, done: i64) -> Result<()> {
    let text = fs::read_to_string(file)?;
    let ended: Vec<&str> = text.lines().collect();
    let jobs: HashSet<&str> = ended.iter().copied().collect();
    assert_eq!(ended.len(), jobs.len(), "a handler has run to its end twice");
    assert_eq!(jobs.len() as i64, done, "a job was done that has not run");
    Ok(())
}

/// Counts time in naps, as a slot does: it stands still while the machine does.
struct NapClock {
    naps: Arc<AtomicU32>,
    task: JoinHandle<()>,
}

impl NapClock {
    fn start() -> NapClock {
        let naps = Arc::new(AtomicU32::new(0));
        let count = naps.clone();
        let task = tokio::spawn(async move {
            loop {
                tokio::time::sleep(NAP / NAP_PARTS).await; // a part of a nap
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        NapClock { naps, task }
    }

    fn seconds(&self) -> f64 {
        (NAP / NAP_PARTS * self.naps.load(Ordering::Relaxed)).as_secs_f64()
    }
}

impl Drop for NapClock {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Keeps a thousand jobs of each queue ahead of the workers.
struct Load {
    stop: Arc<tokio::sync::Notify>,
    enqueued: Arc<AtomicI64>,
    task: JoinHandle<Result<()>>,
}

impl Load {
    async fn start(db: &TestDb) -> Result<Load> {
        let (stop, enqueued) = (Arc::new(tokio::sync::Notify::new()), Arc::new(AtomicI64::new(0)));
        let (client, pitwheel) = (connect(db.url()).await?, Pitwheel::connect(db.url()).await?);
        let (stopped, count) = (stop.clone(), enqueued.clone());
        let task = tokio::spawn(async move {
            let mut ahead = [0; 2];
            loop {
                let row = client.query_one(DONE, &[]).await?;
                for (index, queue) in QUEUES.iter().enumerate() {
                    let missing = row.get::<_, i64>(index) + AHEAD - ahead[index];
                    let nap = Nap { ms: NAP.as_millis() as u64 };
                    let jobs = (0..missing).map(|_| NewJob::of(&nap).queue(*queue));
                    pitwheel.enqueue_many(jobs).await?;
                    ahead[index] += missing;
                    count.fetch_add(missing, Ordering::Relaxed);
                }
                tokio::select! {
                    () = stopped.notified() => return Ok(()),
                    () = tokio::time::sleep(Duration::from_millis(100)) => {} // a tenth of a second's work
                }
            }
        });
        Ok(Load { stop, enqueued, task })
    }

    /// Ends the load; returns how many jobs were enqueued.
    async fn stop(self) -> Result<i64> {
        self.stop.notify_one();
        self.task.await??;
        Ok(self.enqueued.load(Ordering::Relaxed))
    }
}
