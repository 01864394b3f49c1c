//! A worker with a budget runs what is due, no more, and ends by itself.

use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use pitwheel::{Context, NewJob, Worker};
use pitwheel_testkit::{TestDb, Work, wait_until};
use tokio::sync::Semaphore;

const UNTOUCHED: &str =
    "select count(*) from pitwheel.job where holder is null and attempt = 0 and fence = 0";

#[tokio::test]
async fn at_most_so_many_jobs_are_claimed_in_their_order() -> Result<()> {
    let db = TestDb::new().await?;
    db.pitwheel().enqueue_many((0..50).map(|n| NewJob::of(&Work { n }).priority(i16::from(n == 49)))).await?;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let ran = seen.clone();
    let handler = move |work: Work, _: Context| {
        ran.lock().unwrap_or_else(PoisonError::into_inner).push(work.n);
        std::future::ready(Ok::<(), String>(()))
    };
    for (max, left) in [(0, 50), (1, 49), (7, 42), (100, 0), (100, 0)] {
        let worker = Worker::new(db.pitwheel()).queue("default", 3).handle(handler.clone());
        let before = seen.lock().unwrap_or_else(PoisonError::into_inner).len();
        let stats = worker.run_due(max, pending()).await?;
        let after = seen.lock().unwrap_or_else(PoisonError::into_inner).len();
        assert_eq!((after - before, stats.settled), (stats.settled as usize, stats.started), "max {max}");
        assert_eq!(db.count(UNTOUCHED).await?, left, "max {max}: nothing else was claimed");
    }
    let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(seen[0], 49, "the highest priority first");
    assert_eq!(seen[1..8].iter().max(), Some(&6), "then the longest waiting");
    Ok(())
}

#[tokio::test]
async fn it_ends_when_nothing_is_due_and_what_runs_has_ended() -> Result<()> {
    let db = TestDb::new().await?;
    db.pitwheel().enqueue(&Work { n: 1 }).await?;
    db.pitwheel().enqueue(NewJob::of(&Work { n: 2 }).delay(Duration::from_secs(3600))).await?;
    let (gate, started) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    let (held, count) = (gate.clone(), started.clone());
    let handler = move |_: Work, _: Context| {
        let held = held.clone();
        count.fetch_add(1, Ordering::SeqCst);
        async move { held.acquire().await.map(|permit| permit.forget()) }
    };
    let worker = Worker::new(db.pitwheel()).queue("default", 10).queue("other", 10).handle(handler);
    let running = tokio::spawn(worker.run_due(10, pending()));
    wait_until("the job that is due to start", async || Ok(started.load(Ordering::SeqCst) == 1)).await?;
    assert!(!running.is_finished(), "it waits for what it runs");
    gate.add_permits(1);
    let stats = running.await??;
    assert_eq!((stats.started, stats.settled), (1, 1));
    assert_eq!(db.count(UNTOUCHED).await?, 1, "what is not due stays");
    Ok(())
}
