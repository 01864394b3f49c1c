//! A worker stops claiming to run a suspect alone: one at a time, no longer than needed, and only if it can run it.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use pitwheel::{Context, NewJob, Worker, WorkerCommand};
use pitwheel_testkit::{TestDb, Work, start_worker, wait_until, work, worker};
use tokio::sync::Semaphore;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Transaction};

/// Shorter than the ten seconds that a worker waits for its own jobs.
const SOON: Duration = Duration::from_secs(5);
const TURN: &str = "select count(*) from pitwheel.alone_turn where until > clock_timestamp()";

/// Jobs that were started. Those with a number below 10 run until the gate opens.
#[derive(Clone)]
struct Jobs {
    started: Arc<Mutex<BTreeSet<i64>>>,
    gate: Arc<Semaphore>,
}

impl Jobs {
    fn new() -> Jobs {
        Jobs { started: Arc::default(), gate: Arc::new(Semaphore::new(0)) }
    }

    fn worker(&self, db: &TestDb) -> Worker {
        let jobs = self.clone();
        Worker::new(db.pitwheel()).queue("default", 2).handle(move |work: Work, _: Context| {
            let jobs = jobs.clone();
            async move {
                jobs.started.lock().unwrap_or_else(PoisonError::into_inner).insert(work.n);
                if work.n < 10 {
                    jobs.gate.acquire().await.map_err(|error| error.to_string())?.forget();
                }
                Ok::<_, String>(())
            }
        })
    }

    async fn have_started(&self, numbers: impl IntoIterator<Item = i64>) -> Result<()> {
        let numbers: BTreeSet<i64> = numbers.into_iter().collect();
        let started = || self.started.lock().unwrap_or_else(PoisonError::into_inner).is_superset(&numbers);
        wait_until("they have started", async || Ok(started())).await
    }

    async fn have_started_soon(&self, numbers: impl IntoIterator<Item = i64>) -> Result<()> {
        let begun = Instant::now();
        self.have_started(numbers).await?;
        ensure!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
        Ok(())
    }
}

/// A suspect that is due.
async fn suspect(db: &TestDb) -> Result<i64> {
    suspect_number(db, 99).await
}

async fn suspect_number(db: &TestDb, n: i64) -> Result<i64> {
    db.job().kind("work").payload(&format!("{{\"n\":{n}}}")).crashes(2).insert().await
}

/// Locks the row of a job, until the transaction ends.
async fn lock(client: &mut Client, job: i64) -> Result<Transaction<'_>> {
    let transaction = client.transaction().await?;
    transaction.query("select from pitwheel.job where id = $1 for update", &[&job]).await?;
    Ok(transaction)
}

#[tokio::test]
async fn a_job_that_crashed_twice_runs_alone() -> Result<()> {
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
                    beside.lock().unwrap_or_else(PoisonError::into_inner).push(others);
                }
                tokio::time::sleep(Duration::from_millis(3)).await;
                now.fetch_sub(1, Ordering::SeqCst);
                Ok::<_, String>(())
            }
        }
    };
    let running = start_worker(worker(db.pitwheel()).handle(handler));
    wait_until("all ran", async || Ok(db.count("select count(*) from pitwheel.job").await? == 0)).await?;
    running.stop().await?;
    assert_eq!(*beside.lock().unwrap_or_else(PoisonError::into_inner), [0]);
    Ok(())
}

/// Waits until this many looks back have begun after this call.
async fn looks_back(db: &TestDb, count: usize) -> Result<()> {
    let sql =
        "select coalesce(max(extract(epoch from query_start) * 1000000), 0)::bigint from pg_stat_activity
        where datname = current_database() and query like '-- look_back.sql%'";
    let last = Cell::new(db.count(sql).await?);
    for _ in 0..count {
        wait_until("it looks back", async || Ok(last.replace(db.count(sql).await?) != last.get())).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_suspect_stays_alone_when_another_one_is_due() -> Result<()> {
    let db = TestDb::new().await?;
    let jobs = Jobs::new();
    suspect_number(&db, 1).await?;
    let running = start_worker(jobs.worker(&db));
    jobs.have_started([1]).await?;
    suspect_number(&db, 2).await?;
    db.pitwheel().enqueue(work(10)).await?;
    looks_back(&db, 3).await?;
    assert_eq!(*jobs.started.lock().unwrap_or_else(PoisonError::into_inner), BTreeSet::from([1]));
    jobs.gate.add_permits(2);
    jobs.have_started([2, 10]).await?;
    running.stop().await?;
    Ok(())
}

#[tokio::test]
async fn a_worker_that_waits_for_a_suspect_goes_on_when_the_suspect_is_cancelled() -> Result<()> {
    let db = TestDb::new().await?;
    let jobs = Jobs::new();
    db.pitwheel().enqueue(work(1)).await?;
    let running = start_worker(jobs.worker(&db));
    jobs.have_started([1]).await?;
    let suspect = suspect(&db).await?;
    wait_until("it waits for the suspect", async || Ok(db.count(TURN).await? == 1)).await?;
    db.pitwheel().enqueue(work(10)).await?;
    db.pitwheel().cancel(suspect).await?;
    let cancelled = Instant::now();
    jobs.have_started([10]).await?;
    assert!(cancelled.elapsed() < SOON, "{:?}", cancelled.elapsed());
    assert_eq!(db.count(TURN).await?, 0, "another worker may have the turn");
    jobs.gate.add_permits(1);
    running.stop().await?;
    Ok(())
}

#[tokio::test]
async fn while_one_worker_waits_for_a_suspect_the_others_go_on() -> Result<()> {
    let db = TestDb::new().await?;
    // Each has a job that runs and a free slot.
    let (first, second) = (Jobs::new(), Jobs::new());
    db.pitwheel().enqueue_many([work(1), work(2)]).await?;
    let mut running = vec![start_worker(first.worker(&db))];
    first.have_started([1, 2]).await?;
    running.push(start_worker(second.worker(&db)));
    db.pitwheel().enqueue(work(3)).await?;
    second.have_started([3]).await?;
    first.gate.add_permits(1);
    let done = "select count(*) from pitwheel.job_history";
    wait_until("one is done", async || Ok(db.count(done).await? == 1)).await?;
    suspect(&db).await?;
    wait_until("one waits for the suspect", async || Ok(db.count(TURN).await? == 1)).await?;
    // Each look back of the other one finds the suspect too.
    let begun = Instant::now();
    for n in 10..15 {
        db.pitwheel().enqueue(work(n)).await?;
        wait_until("it is done", async || Ok(db.count(done).await? == n - 8)).await?;
        tokio::time::sleep(Duration::from_millis(500)).await; // so that looks come between
    }
    assert!(begun.elapsed() < 2 * SOON, "{:?}", begun.elapsed());
    first.gate.add_permits(1);
    second.gate.add_permits(1);
    wait_until("the suspect has run", async || {
        Ok(db.count("select count(*) from pitwheel.job_history where crashes = 2").await? == 1)
    })
    .await?;
    for worker in running {
        worker.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_worker_that_ends_by_itself_does_not_wait_for_a_suspect() -> Result<()> {
    let db = TestDb::new().await?;
    let jobs = Jobs::new();
    suspect(&db).await?;
    db.pitwheel().enqueue(work(10)).await?;
    let begun = Instant::now();
    let stats = jobs.worker(&db).run_due(5, pending()).await?;
    assert_eq!(stats.settled, 1, "it leaves the suspect to others");
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    assert_eq!(db.count(TURN).await?, 0);
    Ok(())
}

#[tokio::test]
async fn the_turn_is_given_to_a_worker_that_can_use_it() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    let (one, two) = (db.register().await?, db.register().await?);
    let takes = async |worker: i64| -> Result<bool> {
        let params = [(&worker as _, Type::INT8), (&10_000_i64 as _, Type::INT8)];
        Ok(!client.query_typed(include_str!("../sql/engine/take_turn.sql"), &params).await?.is_empty())
    };
    assert!(db.pitwheel().command_worker(one, WorkerCommand::Quiet).await?);
    assert!(!takes(one).await?, "a quiet worker gets no suspect");
    assert!(takes(two).await?);
    db.pitwheel().command_worker(one, WorkerCommand::Resume).await?;
    assert!(!takes(one).await?, "the other one has it");
    client.batch_execute("update pitwheel.alone_turn set until = until + interval '1 hour'").await?;
    assert!(takes(one).await?, "the clock was set back");
    db.expire(one).await?;
    db.sweep().await?;
    assert!(takes(two).await?, "its worker is dead");
    let three = db.register().await?;
    assert!(!takes(three).await?);
    db.pitwheel().command_worker(two, WorkerCommand::Quiet).await?;
    assert!(takes(three).await?, "its worker has become quiet");
    Ok(())
}

#[tokio::test]
async fn a_turn_that_cannot_be_taken_delays_no_other_job() -> Result<()> {
    let db = TestDb::new().await?;
    let jobs = Jobs::new();
    let mut client = db.client().await?;
    let lock = client.transaction().await?;
    lock.query("select from pitwheel.alone_turn for update", &[]).await?;
    db.pitwheel().enqueue(work(1)).await?;
    let running = start_worker(jobs.worker(&db));
    jobs.have_started([1]).await?;
    suspect(&db).await?;
    for n in 10..13 {
        db.pitwheel().enqueue(work(n)).await?;
        jobs.have_started_soon([n]).await?;
    }
    lock.rollback().await?;
    wait_until("it waits for the suspect", async || Ok(db.count(TURN).await? == 1)).await?;
    jobs.gate.add_permits(1);
    jobs.have_started([99]).await?;
    running.stop().await?;
    Ok(())
}

#[tokio::test]
async fn a_suspect_whose_ending_waits_for_a_lock_holds_up_no_other_job() -> Result<()> {
    let db = TestDb::new().await?;
    let jobs = Jobs::new();
    let suspect = suspect_number(&db, 1).await?;
    let running = start_worker(jobs.worker(&db));
    jobs.have_started([1]).await?;
    let mut client = db.client().await?;
    let locked = lock(&mut client, suspect).await?;
    jobs.gate.add_permits(1);
    db.pitwheel().enqueue_many((10..20).map(work)).await?;
    jobs.have_started_soon(10..20).await?;
    locked.rollback().await?;
    wait_until("all are done", async || Ok(db.count("select count(*) from pitwheel.job").await? == 0))
        .await?;
    running.stop().await?;
    Ok(())
}

#[tokio::test]
async fn an_ending_that_waits_for_a_lock_holds_up_no_suspect() -> Result<()> {
    let db = TestDb::new().await?;
    let jobs = Jobs::new();
    let ended = db.pitwheel().enqueue(work(1)).await?.id;
    let running = start_worker(jobs.worker(&db));
    jobs.have_started([1]).await?;
    let mut client = db.client().await?;
    let locked = lock(&mut client, ended).await?;
    suspect(&db).await?;
    wait_until("it waits for the suspect", async || Ok(db.count(TURN).await? == 1)).await?;
    jobs.gate.add_permits(1);
    db.pitwheel().enqueue(work(10)).await?;
    jobs.have_started_soon([10, 99]).await?;
    locked.rollback().await?;
    running.stop().await?;
    Ok(())
}

#[tokio::test]
async fn no_worker_stops_for_a_suspect_that_is_locked() -> Result<()> {
    let db = TestDb::new().await?;
    let jobs = Jobs::new();
    db.pitwheel().enqueue(work(1)).await?;
    let running = start_worker(jobs.worker(&db));
    jobs.have_started([1]).await?;
    let mut client = db.client().await?;
    // Locked before it is due.
    let suspect = db.job().kind("work").payload("{\"n\":99}").due_in_ms(1000).crashes(2).insert().await?;
    let locked = lock(&mut client, suspect).await?;
    for n in 10..13 {
        db.pitwheel().enqueue(work(n)).await?;
        jobs.have_started_soon([n]).await?;
        looks_back(&db, 1).await?;
    }
    locked.rollback().await?;
    jobs.gate.add_permits(1);
    jobs.have_started([99]).await?;
    running.stop().await?;
    Ok(())
}

#[tokio::test]
async fn an_idle_worker_runs_a_suspect_although_a_busy_one_waits_for_it() -> Result<()> {
    let db = TestDb::new().await?;
    let (busy, idle) = (Jobs::new(), Jobs::new());
    db.pitwheel().enqueue(work(1)).await?;
    let first = start_worker(busy.worker(&db));
    busy.have_started([1]).await?;
    suspect(&db).await?;
    wait_until("it waits for the suspect", async || Ok(db.count(TURN).await? == 1)).await?;
    let second = start_worker(idle.worker(&db));
    idle.have_started_soon([99]).await?;
    busy.gate.add_permits(1);
    first.stop().await?;
    second.stop().await?;
    Ok(())
}
