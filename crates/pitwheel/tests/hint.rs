//! A queue gets few hints, and each enqueue is followed by one. Under load few claims follow them, and an idle queue needs few polls.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use futures_util::StreamExt;
use futures_util::stream::poll_fn;
use pitwheel::{Context as JobContext, NewJob, Worker};
use pitwheel_testkit::{TestDb, Work, start_worker, wait_until};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use tokio_postgres::{AsyncMessage, NoTls};

/// Longer than a hint takes, and than one is held back.
const SOON: Duration = Duration::from_secs(5);

#[tokio::test]
async fn a_hint_that_was_held_back_follows_and_stands_for_all() -> Result<()> {
    let db = TestDb::new().await?;
    let (listener, mut connection) = tokio_postgres::connect(db.url(), NoTls).await?;
    let (sender, mut hints) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut messages = poll_fn(|context| connection.poll_message(context));
        while let Some(Ok(message)) = messages.next().await {
            if let AsyncMessage::Notification(hint) = message {
                let _ = sender.send((hint.payload().to_owned(), Instant::now()));
            }
        }
    });
    listener.batch_execute("listen pitwheel").await?;

    let mut last = Instant::now();
    let begun = last;
    let mut enqueued = 0;
    while begun.elapsed() < Duration::from_millis(200) {
        last = Instant::now();
        db.pitwheel().enqueue(NewJob::of(&Work { n: enqueued })).await?;
        enqueued += 1;
    }
    let mut count = 0;
    loop {
        let (hint, at) =
            timeout(SOON, hints.recv()).await.context("no hint after the last enqueue")?.context("ended")?;
        assert_eq!(hint, "due default");
        count += 1;
        if at > last {
            break;
        }
    }
    let most = begun.elapsed().as_millis() / 5 + 2;
    assert!(count <= most, "{count} hints for {enqueued} jobs in {:?}", begun.elapsed());
    Ok(())
}

#[tokio::test]
async fn claims_that_find_many_jobs_are_few() -> Result<()> {
    let db = TestDb::new().await?;
    let handler = async |_: Work, _: JobContext| Ok::<_, String>(());
    let running = start_worker(Worker::new(db.pitwheel()).queue("default", 1000).handle(handler));
    let left = "select count(*) from pitwheel.job";
    db.pitwheel().enqueue(NewJob::of(&Work { n: 0 })).await?;
    wait_until("the worker claims", async || Ok(db.count(left).await? == 0)).await?;

    // Each claim that finds something creates one hold.
    let holds = "select last_value from pitwheel.hold_id_seq";
    let before = db.count(holds).await?;
    let (begun, mut batches) = (Instant::now(), 0);
    while begun.elapsed() < Duration::from_secs(1) {
        db.pitwheel().enqueue_many((0..10).map(|n| NewJob::of(&Work { n }))).await?;
        batches += 1;
        tokio::time::sleep(Duration::from_millis(4)).await; // the pace of the load
    }
    wait_until("all ran", async || Ok(db.count(left).await? == 0)).await?;
    let (claims, most) = (db.count(holds).await? - before, begun.elapsed().as_millis() as i64 / 20 + 5);
    running.stop().await?;
    assert!(claims <= most, "{claims} claims for {batches} batches in {:?}", begun.elapsed());
    Ok(())
}

#[tokio::test]
async fn an_idle_queue_beside_a_busy_one_is_polled_no_more_than_alone() -> Result<()> {
    let db = TestDb::new().await?;
    // With a long lease, what is done regularly adds no transactions.
    let worker = || Worker::new(db.pitwheel()).lease(Duration::from_secs(3600));
    let (busy, _) = drain(&db, worker()).await?;
    let (both, took) = drain(&db, worker().queue("idle", 20)).await?;
    // Every 40 ms, and a little more often at first; with each claim of the other queue it would be every 2 ms.
    let most = took.as_millis() as i64 / 20 + 50;
    assert!(both <= busy + most, "{both} transactions instead of {busy}, in {took:?}");
    Ok(())
}

#[tokio::test]
async fn a_job_beside_a_busy_queue_starts_without_a_hint() -> Result<()> {
    const JOBS: i64 = 20_000;
    const OTHER: i64 = -1;
    let db = TestDb::new().await?;
    db.pitwheel().enqueue_many((0..JOBS).map(|n| NewJob::of(&Work { n }))).await?;
    let (ran, other) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(0)));
    let (count, ran_before) = (ran.clone(), other.clone());
    let handler = move |work: Work, _: JobContext| {
        if work.n == OTHER {
            ran_before.store(count.load(Ordering::Relaxed), Ordering::Relaxed);
        } else {
            count.fetch_add(1, Ordering::Relaxed);
        }
        std::future::ready(Ok::<_, String>(()))
    };
    let worker = Worker::new(db.pitwheel()).without_hints().queue("default", 20).queue("other", 20);
    let running = start_worker(worker.handle(handler));
    wait_until("the queue is busy", async || Ok(ran.load(Ordering::Relaxed) > JOBS / 4)).await?;
    db.pitwheel().enqueue(NewJob::of(&Work { n: OTHER }).queue("other")).await?;
    wait_until("the other job ran", async || Ok(other.load(Ordering::Relaxed) > 0)).await?;
    running.stop().await?;
    let before = other.load(Ordering::Relaxed);
    assert!(before < JOBS, "it waited until the busy queue was empty");
    Ok(())
}

/// Lets the worker run many jobs that do nothing. Returns how many transactions there were, and how long it took.
async fn drain(db: &TestDb, worker: Worker) -> Result<(i64, Duration)> {
    const JOBS: i64 = 20_000;
    db.pitwheel().enqueue_many((0..JOBS).map(|n| NewJob::of(&Work { n }))).await?;
    let before = transactions(db).await?;
    let (ran, all) = (AtomicI64::new(0), Arc::new(Notify::new()));
    let done = all.clone();
    let handler = move |_: Work, _: JobContext| {
        if ran.fetch_add(1, Ordering::Relaxed) + 1 == JOBS {
            done.notify_one();
        }
        std::future::ready(Ok::<_, String>(()))
    };
    let begun = Instant::now();
    let running = start_worker(worker.queue("default", 20).handle(handler));
    all.notified().await;
    running.stop().await?;
    let took = begun.elapsed();
    Ok((transactions(db).await? - before, took))
}

async fn transactions(db: &TestDb) -> Result<i64> {
    // A session adds its counters to the statistics at most once a second.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    db.count("select xact_commit from pg_stat_database where datname = current_database()").await
}
