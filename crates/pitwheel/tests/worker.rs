//! A worker claims as many jobs as it has slots, in order, and gives back what it cannot finish.

use std::collections::HashSet;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use pitwheel::{Cancelled, Context, NewJob, State, Worker};
use pitwheel_testkit::{Concurrency, TestDb, Work, start_worker, wait_until, worker};
use tokio::sync::Semaphore;

/// The order in which jobs ran.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<i64>>>);

impl Seen {
    /// A handler that records the order.
    fn handler(&self) -> impl Fn(Work, Context) -> std::future::Ready<Result<(), String>> + use<> {
        let seen = self.clone();
        move |work, _| {
            seen.0.lock().unwrap_or_else(PoisonError::into_inner).push(work.n);
            std::future::ready(Ok(()))
        }
    }

    fn order(&self) -> Vec<i64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn nothing_left(db: &TestDb) -> Result<bool> {
    Ok(db.count("select count(*) from pitwheel.job").await? == 0)
}

#[tokio::test]
async fn higher_priorities_first_then_older_ones() -> Result<()> {
    let db = TestDb::new().await?;
    let jobs = [(1, 0), (2, -9), (3, 9), (4, 0), (5, 1)];
    db.pitwheel().enqueue_many(jobs.map(|(n, priority)| NewJob::of(&Work { n }).priority(priority))).await?;
    let seen = Seen::default();
    let running = start_worker(Worker::new(db.pitwheel()).queue("default", 1).handle(seen.handler()));
    wait_until("all ran", async || nothing_left(&db).await).await?;
    running.stop().await?;
    assert_eq!(seen.order(), [3, 5, 1, 4, 2]);
    Ok(())
}

#[tokio::test]
async fn never_more_than_the_slots_at_once() -> Result<()> {
    let db = TestDb::new().await?;
    db.pitwheel().enqueue_many((0..200).map(|n| NewJob::of(&Work { n }))).await?;
    let concurrency = Arc::<Concurrency>::default();
    let running = start_worker(concurrency.of(Worker::new(db.pitwheel()).queue("default", 7)));
    wait_until("all ran", async || nothing_left(&db).await).await?;
    running.stop().await?;
    assert!((1..=7).contains(&concurrency.most()));
    Ok(())
}

#[tokio::test]
async fn only_jobs_that_start_within_milliseconds_are_claimed_beyond_the_slots() -> Result<()> {
    let db = TestDb::new().await?;
    db.pitwheel().enqueue_many((0..40).map(|n| NewJob::of(&Work { n }))).await?;
    let ended = Arc::new(AtomicI64::new(0));
    let count = ended.clone();
    let handler = move |_: Work, _: Context| {
        let count = count.clone();
        async move {
            tokio::time::sleep(Duration::from_millis(300)).await; // the duration that the worker measures
            count.fetch_add(1, Ordering::SeqCst);
            Ok::<_, String>(())
        }
    };
    let running = start_worker(Worker::new(db.pitwheel()).queue("default", 7).handle(handler));
    let claimed = "select (select count(*) from pitwheel.job where holder is not null)
        + (select count(*) from pitwheel.job_history)";
    wait_until("all ran", async || {
        // Seven that run, and one for each of these that is about to end.
        let claimed = db.count(claimed).await?;
        assert!(claimed <= ended.load(Ordering::SeqCst) + 14, "claimed jobs wait for their start");
        nothing_left(&db).await
    })
    .await?;
    running.stop().await?;
    Ok(())
}

#[tokio::test]
async fn what_is_claimed_and_not_started_is_released_when_the_worker_stops() -> Result<()> {
    let db = TestDb::new().await?;
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let handler = {
        let gate = gate.clone();
        move |work: Work, _: Context| {
            let gate = gate.clone();
            async move {
                // The first hundred teach the worker that jobs are short; the next one takes its only slot.
                if work.n >= 100 {
                    let _open = gate.acquire().await;
                }
                Ok::<_, String>(())
            }
        }
    };
    db.pitwheel().enqueue_many((0..400).map(|n| NewJob::of(&Work { n }))).await?;
    let worker = Worker::new(db.pitwheel()).queue("default", 1).grace(Duration::from_secs(60));
    let running = start_worker(worker.handle(handler));
    let held = "select count(*) from pitwheel.job where holder is not null";
    wait_until("jobs are claimed ahead", async || {
        let done = db.count("select count(*) from pitwheel.job_history").await?;
        Ok(done == 100 && db.count(held).await? > 1)
    })
    .await?;
    let stopping = tokio::spawn(running.stop());
    wait_until("only the running one is held", async || Ok(db.count(held).await? == 1)).await?;
    assert_eq!(db.count("select count(*) from pitwheel.job where holder is null and attempt > 0").await?, 0);
    gate.add_permits(1);
    assert_eq!(stopping.await??.started, 101);
    assert_eq!(
        db.count("select count(*) from pitwheel.job where holder is null and attempt = 0").await?,
        299
    );
    Ok(())
}

#[tokio::test]
async fn a_finished_job_is_not_released_by_a_short_grace() -> Result<()> {
    let db = TestDb::new().await?;
    let ids = db.pitwheel().enqueue_many([1, 2].map(|n| NewJob::of(&Work { n }))).await?;
    let (gate, ended) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicI64::new(0)));
    let (opened, count) = (gate.clone(), ended.clone());
    let handler = move |work: Work, _: Context| {
        let (gate, count) = (opened.clone(), count.clone());
        async move {
            if work.n == 2 {
                std::future::pending::<()>().await;
            }
            let _open = gate.acquire().await;
            count.fetch_add(1, Ordering::SeqCst);
            Ok::<_, String>(())
        }
    };
    let worker = Worker::new(db.pitwheel()).queue("default", 5).grace(Duration::ZERO);
    let running = start_worker(worker.handle(handler));
    let held = "select count(*) from pitwheel.job where holder is not null";
    wait_until("both run", async || Ok(db.count(held).await? == 2)).await?;
    // The ending of the first cannot be written before the worker stops.
    let mut client = db.client().await?;
    let lock = client.transaction().await?;
    lock.execute("select from pitwheel.job where id = $1 for update", &[&ids[0].id]).await?;
    gate.add_permits(1);
    wait_until("its handler has ended", async || Ok(ended.load(Ordering::SeqCst) == 1)).await?;
    let stopping = tokio::spawn(running.stop());
    wait_until("the other is released", async || Ok(db.count(held).await? == 1)).await?;
    lock.rollback().await?;
    stopping.await??;

    let [first, second] = [db.pitwheel().job(ids[0].id).await?, db.pitwheel().job(ids[1].id).await?];
    assert_eq!((first.summary.state, first.fence), (State::Done, 1));
    assert_eq!((second.summary.state, second.summary.attempt, second.crashes), (State::Waiting, 0, 0));
    Ok(())
}

#[tokio::test]
async fn jobs_without_a_handler_wait_for_a_worker_that_has_one() -> Result<()> {
    let db = TestDb::new().await?;
    let unknown = db.pitwheel().enqueue_many((0..600).map(|_| NewJob::raw("unknown", "{}"))).await?;
    db.pitwheel().enqueue_many((0..50).map(|n| NewJob::of(&Work { n }))).await?;
    let seen = Seen::default();
    let running = start_worker(worker(db.pitwheel()).handle(seen.handler()));
    wait_until("its own jobs ran", async || Ok(seen.order().len() == 50)).await?;
    running.stop().await?;
    assert_eq!(
        db.count("select count(*) from pitwheel.job where kind = 'unknown' and attempt = 0").await?,
        600
    );
    assert_eq!(db.pitwheel().job(unknown[0].id).await?.summary.state, State::Waiting);
    Ok(())
}

#[tokio::test]
async fn a_paused_queue_is_not_claimed_from_and_the_others_are() -> Result<()> {
    let db = TestDb::new().await?;
    for which in [Some("default"), None] {
        let seen = Seen::default();
        db.pitwheel().pause(which).await?;
        let running = start_worker(worker(db.pitwheel()).queue("open", 5).handle(seen.handler()));
        db.pitwheel().enqueue(&Work { n: 1 }).await?;
        db.pitwheel().enqueue(NewJob::of(&Work { n: 2 }).queue("open")).await?;
        let open = usize::from(which.is_some());
        wait_until("the open queue is empty", async || Ok(seen.order().len() == open)).await?;
        let held = "select count(*) from pitwheel.job where holder is not null and queue = 'default'";
        assert_eq!(db.count(held).await?, 0);
        assert!(db.pitwheel().resume(which).await?);
        assert!(!db.pitwheel().resume(which).await?);
        wait_until("all ran", async || nothing_left(&db).await).await?;
        running.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_running_job_is_notified_of_its_cancel() -> Result<()> {
    let db = TestDb::new().await?;
    let id = db.pitwheel().enqueue(&Work { n: 1 }).await?.id;
    let handler = async |_: Work, context: Context| {
        context.cancelled().await;
        Err::<(), _>("stopped half-way")
    };
    let running = start_worker(worker(db.pitwheel()).lease(Duration::from_secs(60)).handle(handler));
    wait_until("it runs", async || Ok(db.pitwheel().job(id).await?.summary.state == State::Running)).await?;
    let requested = Instant::now();
    assert_eq!(db.pitwheel().cancel(id).await?, Cancelled::Requested);
    wait_until(
        "it is cancelled",
        async || Ok(db.pitwheel().job(id).await?.summary.state == State::Cancelled),
    )
    .await?;
    assert!(requested.elapsed() < Duration::from_secs(20), "later than two heartbeats");
    running.stop().await?;

    db.pitwheel().retry(id).await?;
    assert_eq!(db.pitwheel().job(id).await?.summary.state, State::Waiting);
    Ok(())
}

#[tokio::test]
async fn a_shutdown_waits_for_running_jobs() -> Result<()> {
    let db = TestDb::new().await?;
    db.pitwheel().enqueue_many((0..20).map(|n| NewJob::of(&Work { n }))).await?;
    let started = Arc::new(AtomicUsize::new(0));
    let go_on = Arc::new(tokio::sync::Semaphore::new(0));
    let handler = {
        let (started, go_on) = (started.clone(), go_on.clone());
        move |_: Work, _: Context| {
            let (started, go_on) = (started.clone(), go_on.clone());
            async move {
                started.fetch_add(1, Ordering::SeqCst);
                go_on.acquire().await.map(drop)
            }
        }
    };
    let running = start_worker(Worker::new(db.pitwheel()).queue("default", 5).handle(handler));
    wait_until("five run", async || Ok(started.load(Ordering::SeqCst) == 5)).await?;
    let stopping = tokio::spawn(running.stop());
    tokio::task::yield_now().await;
    go_on.add_permits(100);
    let stats = stopping.await??;
    assert_eq!((stats.started, stats.settled, stats.lost), (stats.settled, stats.started, 0));
    assert_eq!(db.count("select count(*) from pitwheel.job where holder is not null").await?, 0);
    assert_eq!(db.count("select count(*) from pitwheel.job_history").await?, stats.settled as i64);
    Ok(())
}

#[tokio::test]
async fn a_job_that_outlasts_the_grace_time_is_released_uncharged() -> Result<()> {
    let db = TestDb::new().await?;
    let id = db.pitwheel().enqueue(&Work { n: 1 }).await?.id;
    let handler = async |_: Work, _: Context| {
        std::future::pending::<()>().await;
        Ok::<_, String>(())
    };
    let running = start_worker(worker(db.pitwheel()).grace(Duration::from_millis(50)).handle(handler));
    wait_until("it runs", async || Ok(db.pitwheel().job(id).await?.summary.state == State::Running)).await?;
    running.stop().await?;
    let job = db.pitwheel().job(id).await?;
    assert_eq!((job.summary.state, job.summary.attempt, job.crashes), (State::Waiting, 0, 0));
    assert_eq!(db.count("select count(*) from pitwheel.hold").await?, 0);
    Ok(())
}

#[tokio::test]
async fn a_worker_declared_dead_continues_as_a_new_worker() -> Result<()> {
    let db = TestDb::new().await?;
    let id = db.pitwheel().enqueue(&Work { n: 1 }).await?.id;
    let notified = Arc::new(AtomicUsize::new(0));
    let handler = {
        let notified = notified.clone();
        move |_: Work, context: Context| {
            let notified = notified.clone();
            async move {
                if context.claim().fence == 1 {
                    context.cancelled().await;
                    notified.fetch_add(1, Ordering::SeqCst);
                }
                Ok::<_, String>(())
            }
        }
    };
    let running = start_worker(worker(db.pitwheel()).lease(Duration::from_secs(2)).handle(handler));
    wait_until("it runs", async || Ok(db.pitwheel().job(id).await?.summary.state == State::Running)).await?;
    db.client().await?.batch_execute("update pitwheel.worker set dead_at = now()").await?;
    wait_until("the second claim completed it", async || {
        Ok(db.pitwheel().job(id).await?.summary.state == State::Done)
    })
    .await?;
    let stats = running.stop().await?;
    assert_eq!((notified.load(Ordering::SeqCst), stats.lost), (1, 1));
    assert_eq!(db.pitwheel().job(id).await?.fence, 2);
    Ok(())
}

#[tokio::test]
async fn a_job_committed_late_on_a_busy_queue_is_claimed_soon() -> Result<()> {
    let db = TestDb::new().await?;
    let seen = Arc::new(Mutex::new(HashSet::new()));
    let handler = {
        let seen = seen.clone();
        move |work: Work, _: Context| {
            seen.lock().unwrap().insert(work.n);
            std::future::ready(Ok::<_, String>(()))
        }
    };
    let running = start_worker(worker(db.pitwheel()).without_hints().handle(handler));
    let late = db.client().await?;
    late.batch_execute("begin; select pitwheel.enqueue('work', '{\"n\":-1}')").await?;
    // Long enough for the cursor to pass the uncommitted row, and for the look back to have run as well.
    let busy = Instant::now();
    let mut n = 0;
    while busy.elapsed() < Duration::from_millis(4500) {
        db.pitwheel()
            .enqueue_many((0..50).map(|_| {
                n += 1;
                NewJob::of(&Work { n })
            }))
            .await?;
    }
    late.batch_execute("commit").await?;
    let committed = Instant::now();
    wait_until("the late job ran", async || Ok(seen.lock().unwrap().contains(&-1))).await?;
    // A look back finds it, each second or a little later; without these it is found after a minute.
    assert!(committed.elapsed() < Duration::from_secs(11), "{:?}", committed.elapsed());
    running.stop().await?;
    Ok(())
}

#[tokio::test]
async fn a_job_claimed_without_a_response_is_still_run() -> Result<()> {
    use pitwheel::engine::{Cursor, QueueSlots, claim};
    let db = TestDb::new().await?;
    let client = db.client().await?;
    let seen = Seen::default();
    let running = start_worker(worker(db.pitwheel()).handle(seen.handler()));
    wait_until("the worker is registered", async || {
        Ok(db.count("select count(*) from pitwheel.worker").await? == 1)
    })
    .await?;
    // What the worker's own claim does: committed, but the worker never receives the response.
    let id = db.count("select id from pitwheel.worker").await?;
    client.batch_execute("begin; select pitwheel.enqueue('work', '{\"n\":7}')").await?;
    client.batch_execute("update pitwheel.job set run_at = now()").await?;
    let asks = [QueueSlots { queue: "default".to_owned(), slots: 10 }];
    let bounds = Cursor::new(["default"].into_iter()).bounds();
    assert_eq!(claim(&client, id, &asks, &["work".to_owned()], &bounds).await?.len(), 1);
    client.batch_execute("commit").await?;
    // The connections break, so the worker's next claim fails. It cannot know whether a failed claim was committed.
    let cut = "select pg_terminate_backend(pid) from pg_stat_activity
        where pid <> pg_backend_pid() and datname = current_database() and application_name = 'pitwheel'";
    wait_until("it ran", async || {
        client.query(cut, &[]).await?;
        tokio::time::sleep(Duration::from_millis(1500)).await; // time to connect again and to look for unknown holds
        Ok(seen.order() == [7])
    })
    .await?;
    running.stop().await?;
    Ok(())
}

#[tokio::test]
async fn a_worker_that_cannot_run_returns_the_reason() -> Result<()> {
    let db = TestDb::new().await?;
    let handler = |_: Work, _: Context| std::future::ready(Ok::<_, String>(()));
    let cases = [
        (Worker::new(db.pitwheel()), "at least one queue and one handler"),
        (Worker::new(db.pitwheel()).queue("default", 1), "at least one queue and one handler"),
        (Worker::new(db.pitwheel()).queue("default", 0).handle(handler), "has no slots"),
        (Worker::new(db.pitwheel()).queue("a", 1).queue("a", 1).handle(handler), "given twice"),
        (Worker::new(db.pitwheel()).queue("no name", 1).handle(handler), "is not a name"),
        (Worker::new(db.pitwheel()).queue("default", 1).handle(handler).handle(handler), "has two handlers"),
    ];
    for (worker, words) in cases {
        let error = worker.run(std::future::pending()).await.unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
    let empty = TestDb::unmigrated().await?;
    let error = worker(empty.pitwheel()).handle(handler).run(std::future::pending()).await.unwrap_err();
    assert_eq!(error.code(), "schema_behind");
    Ok(())
}
