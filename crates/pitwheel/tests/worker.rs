//! A worker takes what it has slots for, in order, and gives back what it cannot finish.

mod support;

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use pitwheel::{Cancelled, Context, NewJob, State, Worker};
use pitwheel_testkit::TestDb;
use support::{Work, start, until, worker};
use tokio::sync::Notify;

/// The order in which jobs ran.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<i64>>>);

impl Seen {
    /// A handler that writes it down.
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
    let running = start(Worker::new(db.pitwheel()).queue("default", 1).handle(seen.handler()));
    until("all ran", async || nothing_left(&db).await).await?;
    running.stop().await?;
    assert_eq!(seen.order(), [3, 5, 1, 4, 2]);
    Ok(())
}

#[tokio::test]
async fn never_more_than_the_slots_at_once() -> Result<()> {
    let db = TestDb::new().await?;
    db.pitwheel().enqueue_many((0..200).map(|n| NewJob::of(&Work { n }))).await?;
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let handler = {
        let (now, most) = (now.clone(), most.clone());
        move |_: Work, _: Context| {
            let (now, most) = (now.clone(), most.clone());
            async move {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                now.fetch_sub(1, Ordering::SeqCst);
                Ok::<_, String>(())
            }
        }
    };
    let running = start(Worker::new(db.pitwheel()).queue("default", 7).handle(handler));
    until("all ran", async || {
        assert!(db.count("select count(*) from pitwheel.job where holder is not null").await? <= 7);
        nothing_left(&db).await
    })
    .await?;
    running.stop().await?;
    assert!((1..=7).contains(&most.load(Ordering::SeqCst)));
    Ok(())
}

#[tokio::test]
async fn kinds_that_nobody_knows_stay_for_a_worker_that_does() -> Result<()> {
    let db = TestDb::new().await?;
    let strange = db.pitwheel().enqueue_many((0..600).map(|_| NewJob::raw("strange", "{}"))).await?;
    db.pitwheel().enqueue_many((0..50).map(|n| NewJob::of(&Work { n }))).await?;
    let seen = Seen::default();
    let running = start(worker(db.pitwheel()).handle(seen.handler()));
    until("its own ran", async || Ok(seen.order().len() == 50)).await?;
    running.stop().await?;
    assert_eq!(
        db.count("select count(*) from pitwheel.job where kind = 'strange' and attempt = 0").await?,
        600
    );
    assert_eq!(db.pitwheel().job(strange[0].id).await?.summary.state, State::Waiting);
    Ok(())
}

#[tokio::test]
async fn a_paused_queue_gives_nothing_and_what_runs_goes_on() -> Result<()> {
    let db = TestDb::new().await?;
    for which in [Some("default"), None] {
        let seen = Seen::default();
        db.pitwheel().pause(which).await?;
        let running = start(worker(db.pitwheel()).queue("open", 5).handle(seen.handler()));
        db.pitwheel().enqueue(&Work { n: 1 }).await?;
        db.pitwheel().enqueue(NewJob::of(&Work { n: 2 }).queue("open")).await?;
        let open = usize::from(which.is_some());
        until("the open queue was emptied", async || Ok(seen.order().len() == open)).await?;
        let held = "select count(*) from pitwheel.job where holder is not null and queue = 'default'";
        assert_eq!(db.count(held).await?, 0);
        assert!(db.pitwheel().resume(which).await?);
        assert!(!db.pitwheel().resume(which).await?);
        until("all ran", async || nothing_left(&db).await).await?;
        running.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_running_job_hears_that_it_is_cancelled() -> Result<()> {
    let db = TestDb::new().await?;
    let id = db.pitwheel().enqueue(&Work { n: 1 }).await?.id;
    let handler = async |_: Work, context: Context| {
        context.cancelled().await;
        Err::<(), _>("stopped half-way")
    };
    let running = start(worker(db.pitwheel()).lease(Duration::from_secs(6)).handle(handler));
    until("it runs", async || Ok(db.pitwheel().job(id).await?.summary.state == State::Running)).await?;
    let asked = Instant::now();
    assert_eq!(db.pitwheel().cancel(id).await?, Cancelled::Requested);
    until("it stopped", async || Ok(db.pitwheel().job(id).await?.summary.state == State::Cancelled)).await?;
    assert!(asked.elapsed() < Duration::from_secs(2), "two heartbeats are two seconds");
    running.stop().await?;

    db.pitwheel().retry(id).await?;
    assert_eq!(db.pitwheel().job(id).await?.summary.state, State::Waiting);
    Ok(())
}

#[tokio::test]
async fn progress_is_there_while_the_job_runs() -> Result<()> {
    let db = TestDb::new().await?;
    let id = db.pitwheel().enqueue(&Work { n: 1 }).await?.id;
    let go_on = Arc::new(Notify::new());
    let handler = {
        let go_on = go_on.clone();
        move |_: Work, context: Context| {
            let go_on = go_on.clone();
            async move {
                context.progress(0.5, "half of it");
                go_on.notified().await;
                Ok::<_, String>(())
            }
        }
    };
    let running = start(worker(db.pitwheel()).handle(handler));
    until("progress shows", async || Ok(db.pitwheel().job(id).await?.summary.progress == Some(0.5))).await?;
    assert_eq!(db.pitwheel().job(id).await?.summary.note.as_deref(), Some("half of it"));
    go_on.notify_one();
    running.stop().await?;
    Ok(())
}

#[tokio::test]
async fn a_shutdown_waits_for_what_runs() -> Result<()> {
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
    let running = start(Worker::new(db.pitwheel()).queue("default", 5).handle(handler));
    until("five run", async || Ok(started.load(Ordering::SeqCst) == 5)).await?;
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
async fn what_outlasts_the_grace_time_is_released_uncharged() -> Result<()> {
    let db = TestDb::new().await?;
    let id = db.pitwheel().enqueue(&Work { n: 1 }).await?.id;
    let handler = async |_: Work, _: Context| {
        std::future::pending::<()>().await;
        Ok::<_, String>(())
    };
    let running = start(worker(db.pitwheel()).grace(Duration::from_millis(50)).handle(handler));
    until("it runs", async || Ok(db.pitwheel().job(id).await?.summary.state == State::Running)).await?;
    running.stop().await?;
    let job = db.pitwheel().job(id).await?;
    assert_eq!((job.summary.state, job.summary.attempt, job.crashes), (State::Waiting, 0, 0));
    assert_eq!(db.count("select count(*) from pitwheel.hold").await?, 0);
    Ok(())
}

#[tokio::test]
async fn a_worker_declared_dead_goes_on_as_another() -> Result<()> {
    let db = TestDb::new().await?;
    let id = db.pitwheel().enqueue(&Work { n: 1 }).await?.id;
    let told = Arc::new(AtomicUsize::new(0));
    let handler = {
        let told = told.clone();
        move |_: Work, context: Context| {
            let told = told.clone();
            async move {
                if context.claim().fence == 1 {
                    context.cancelled().await;
                    told.fetch_add(1, Ordering::SeqCst);
                }
                Ok::<_, String>(())
            }
        }
    };
    let running = start(worker(db.pitwheel()).lease(Duration::from_secs(2)).handle(handler));
    until("it runs", async || Ok(db.pitwheel().job(id).await?.summary.state == State::Running)).await?;
    db.client().await?.batch_execute("update pitwheel.worker set dead_at = now()").await?;
    until("it was done by the second claim", async || {
        Ok(db.pitwheel().job(id).await?.summary.state == State::Done)
    })
    .await?;
    let stats = running.stop().await?;
    assert_eq!((told.load(Ordering::SeqCst), stats.lost), (1, 1));
    assert_eq!(db.pitwheel().job(id).await?.fence, 2);
    Ok(())
}

#[tokio::test]
async fn a_job_committed_late_on_a_busy_queue_does_not_wait() -> Result<()> {
    let db = TestDb::new().await?;
    let seen = Arc::new(Mutex::new(HashSet::new()));
    let handler = {
        let seen = seen.clone();
        move |work: Work, _: Context| {
            seen.lock().unwrap().insert(work.n);
            std::future::ready(Ok::<_, String>(()))
        }
    };
    let running = start(worker(db.pitwheel()).without_hints().handle(handler));
    let late = db.client().await?;
    late.batch_execute("begin; select pitwheel.enqueue('work', '{\"n\":-1}')").await?;
    // Long enough for the bound to pass the open row, and for the look back to have passed by it too.
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
    until("the late one ran", async || Ok(seen.lock().unwrap().contains(&-1))).await?;
    assert!(committed.elapsed() < Duration::from_millis(1500), "{:?}", committed.elapsed());
    running.stop().await?;
    Ok(())
}

#[tokio::test]
async fn a_claim_whose_answer_was_lost_is_run_all_the_same() -> Result<()> {
    use pitwheel::engine::{Cursor, QueueSlots, claim};
    let db = TestDb::new().await?;
    let client = db.client().await?;
    let seen = Seen::default();
    let running = start(worker(db.pitwheel()).handle(seen.handler()));
    until("it is there", async || Ok(db.count("select count(*) from pitwheel.worker").await? == 1)).await?;
    // What the worker's own claim does, committed, without an answer that reaches it.
    let id = db.count("select id from pitwheel.worker").await?;
    client.batch_execute("begin; select pitwheel.enqueue('work', '{\"n\":7}')").await?;
    client.batch_execute("update pitwheel.job set run_at = now()").await?;
    let asks = [QueueSlots { queue: "default".to_owned(), slots: 10 }];
    let bounds = Cursor::new(["default"].into_iter()).bounds();
    assert_eq!(claim(&client, id, &asks, &["work".to_owned()], &bounds).await?.len(), 1);
    client.batch_execute("commit").await?;
    // The connections break, so the worker's next claim fails, and it cannot know which one did not.
    let cut = "select pg_terminate_backend(pid) from pg_stat_activity
        where pid <> pg_backend_pid() and datname = current_database() and application_name = 'pitwheel'";
    until("it ran", async || {
        client.query(cut, &[]).await?;
        tokio::time::sleep(Duration::from_millis(1500)).await; // time to connect again and look
        Ok(seen.order() == [7])
    })
    .await?;
    running.stop().await?;
    Ok(())
}

#[tokio::test]
async fn a_suspect_runs_alone() -> Result<()> {
    let db = TestDb::new().await?;
    db.job().kind("work").payload("{\"n\":-1}").crashes(2).insert().await?;
    db.pitwheel().enqueue_many((0..300).map(|n| NewJob::of(&Work { n }))).await?;
    let now = Arc::new(AtomicUsize::new(0));
    let beside = Arc::new(Mutex::new(Vec::new()));
    let handler = {
        let (now, beside) = (now.clone(), beside.clone());
        move |work: Work, _: Context| {
            let (now, beside) = (now.clone(), beside.clone());
            async move {
                let others = now.fetch_add(1, Ordering::SeqCst);
                if work.n == -1 {
                    beside.lock().unwrap().push(others);
                }
                tokio::time::sleep(Duration::from_millis(3)).await;
                now.fetch_sub(1, Ordering::SeqCst);
                Ok::<_, String>(())
            }
        }
    };
    let running = start(worker(db.pitwheel()).handle(handler));
    until("all ran", async || nothing_left(&db).await).await?;
    running.stop().await?;
    assert_eq!(*beside.lock().unwrap(), [0]);
    Ok(())
}

#[tokio::test]
async fn a_worker_that_cannot_work_says_why() -> Result<()> {
    let db = TestDb::new().await?;
    let fine = |_: Work, _: Context| std::future::ready(Ok::<_, String>(()));
    let cases = [
        (Worker::new(db.pitwheel()), "at least one queue and one handler"),
        (Worker::new(db.pitwheel()).queue("default", 1), "at least one queue and one handler"),
        (Worker::new(db.pitwheel()).queue("default", 0).handle(fine), "has no slots"),
        (Worker::new(db.pitwheel()).queue("a", 1).queue("a", 1).handle(fine), "given twice"),
        (Worker::new(db.pitwheel()).queue("no name", 1).handle(fine), "is not a name"),
        (Worker::new(db.pitwheel()).queue("default", 1).handle(fine).handle(fine), "has two handlers"),
    ];
    for (worker, words) in cases {
        let error = worker.run(std::future::pending()).await.unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
    let empty = TestDb::unmigrated().await?;
    let error = worker(empty.pitwheel()).handle(fine).run(std::future::pending()).await.unwrap_err();
    assert_eq!(error.code(), "schema_behind");
    Ok(())
}
