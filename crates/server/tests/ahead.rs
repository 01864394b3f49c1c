//! Jobs that are claimed before a worker has a free slot for them: they wait at the node, or at a worker that keeps them.

mod support;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Result;
use pitwheel::{Context, State, Worker};
use pitwheel_proto::v1;
use pitwheel_testkit::{Concurrency, TestDb, Work, start_worker, wait_until, work};
use tokio::sync::Semaphore;

use crate::support::{Node, WorkerStream, result, stream_request};

const LEASE: Duration = Duration::from_secs(30);
/// Its heartbeats are so rare that nothing here waits for one.
const LONG_LEASE: Duration = Duration::from_secs(3600);
const SLOTS: usize = 100;
const HELD: &str = "select count(*) from pitwheel.job where holder is not null";
const DONE: &str = "select count(*) from pitwheel.job_history";

/// A stream with 100 slots that has completed 100 jobs together, so that jobs are known to be short.
async fn stream_of_short_jobs(node: &Node, keeps_ahead: bool) -> Result<WorkerStream> {
    let request = v1::StreamJobsRequest { keeps_ahead, ..stream_request(SLOTS as u32) };
    let mut stream = WorkerStream::open_with(node.workers().await?, request).await?;
    let jobs = stream.jobs_at_least(SLOTS).await?;
    assert_eq!(jobs.len(), SLOTS, "nothing is known of how long jobs take");
    let done = || v1::result::Outcome::Complete(v1::Complete::default());
    let results = jobs.iter().map(|job| result(job, done())).collect();
    stream.client.report_result(v1::ReportResultRequest { results }).await?;
    Ok(stream)
}

#[tokio::test]
async fn only_a_worker_that_keeps_jobs_gets_more_than_it_has_slots() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    db.pitwheel().enqueue_many((0..5_000).map(work)).await?;
    let mut stream = stream_of_short_jobs(&node, true).await?;
    stream.jobs_at_least(SLOTS + 1).await?;

    let mut stream = stream_of_short_jobs(&node, false).await?;
    assert_eq!(stream.jobs_at_least(SLOTS).await?.len(), SLOTS);
    // Many claims fit into this time.
    let more = tokio::time::timeout(Duration::from_millis(300), stream.jobs());
    assert!(more.await.is_err(), "all slots are taken");
    node.stop().await
}

#[tokio::test]
async fn jobs_that_wait_at_the_node_for_slow_ones_are_given_to_a_stream_that_is_free() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    db.pitwheel().enqueue_many((0..300).map(work)).await?;
    let mut busy = stream_of_short_jobs(&node, false).await?;
    let slow = busy.jobs_at_least(SLOTS).await?;
    let mut free = node.stream(300).await?;
    let rest = free.jobs_at_least(SLOTS).await?;
    let ids: BTreeSet<i64> = slow.iter().chain(&rest).map(|job| job.job_id).collect();
    assert_eq!(ids.len(), 2 * SLOTS, "each of them runs once");
    assert!(rest.iter().all(|job| job.attempt == 1), "to wait is not an attempt");
    node.stop().await
}

#[tokio::test]
async fn a_remote_worker_starts_jobs_in_their_order_and_no_more_than_it_has_slots() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    db.pitwheel().enqueue_many((0..500).map(work)).await?;
    let ran = Arc::new(Mutex::new(Vec::new()));
    let handler = {
        let ran = ran.clone();
        move |work: Work, _: Context| {
            ran.lock().expect("no handler panics").push(work.n);
            std::future::ready(Ok::<_, String>(()))
        }
    };
    let running = start_worker(Worker::remote(&node.url()).queue("default", 1).handle(handler));
    wait_until("all ran", async || Ok(db.count(DONE).await? == 500)).await?;
    running.stop().await?;
    let ran = ran.lock().expect("no handler panics").clone();
    // Of two claims at a time, the later one may bring its jobs first.
    let out_of_order = ran.windows(2).filter(|pair| pair[0] > pair[1]).count();
    assert!(out_of_order < 20, "{ran:?}");

    let concurrency = Arc::<Concurrency>::default();
    db.pitwheel().enqueue_many((0..500).map(work)).await?;
    let running = start_worker(concurrency.of(Worker::remote(&node.url()).queue("default", 7)));
    wait_until("all ran", async || Ok(db.count(DONE).await? == 1000)).await?;
    running.stop().await?;
    assert!((1..=7).contains(&concurrency.most()));
    node.stop().await
}

#[tokio::test]
async fn what_a_remote_worker_has_not_started_is_released_when_it_stops_or_is_cancelled() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LONG_LEASE).await?;
    let (gate, ran) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    let handler = {
        let (gate, ran) = (gate.clone(), ran.clone());
        move |work: Work, _: Context| {
            let (gate, ran) = (gate.clone(), ran.clone());
            async move {
                // The first hundred teach the node that jobs are short; the next one takes the only slot.
                if work.n >= 100 {
                    let _open = gate.acquire().await;
                }
                ran.fetch_add(1, Ordering::SeqCst);
                Ok::<_, String>(())
            }
        }
    };
    let enqueued = db.pitwheel().enqueue_many((0..400).map(work)).await?;
    let worker = Worker::remote(&node.url()).queue("default", 1).grace(Duration::from_secs(60));
    let running = start_worker(worker.handle(handler));
    wait_until(
        "jobs were sent ahead",
        async || Ok(db.count(DONE).await? == 100 && db.count(HELD).await? > 1),
    )
    .await?;
    let cancelled = enqueued[101].id;
    db.pitwheel().cancel(cancelled).await?;
    wait_until("it is cancelled", async || Ok(db.state(cancelled).await? == Some(State::Cancelled))).await?;

    let stopping = tokio::spawn(running.stop());
    wait_until("only the running one is held", async || Ok(db.count(HELD).await? == 1)).await?;
    assert_eq!(db.count("select count(*) from pitwheel.job where holder is null and attempt > 0").await?, 0);
    gate.add_permits(1);
    let stats = stopping.await??;
    assert_eq!((stats.started, stats.settled, stats.lost), (101, 101, 0));
    assert_eq!(ran.load(Ordering::SeqCst), 101);
    assert_eq!(db.count("select count(*) from pitwheel.job where attempt = 0").await?, 298);
    node.stop().await
}
