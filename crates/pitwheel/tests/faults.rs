//! Faults with real processes: killed, stopped and aborted workers; a database that crashes, is away, or has no free
//! connection.
//!
//! The worker processes are this test binary, started again with `PITWHEEL_FAULT_WORKER` set to a database URL.

use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use pitwheel::engine::{Pool, Session, Sql, declare_dead};
use pitwheel::{Context, Job, NewJob, Options, Pitwheel, Settled, State, Worker};
use pitwheel_devdb::{Options as ServerOptions, Server};
use pitwheel_testkit::{
    ChildProcess, Nap, TestDb, WAIT_MAX, Work, connect, signal, start_worker, time_until, wait_until, work,
    worker,
};
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, Semaphore};
use tokio_postgres::Client;

/// Short, so that the tests are short; every interval that depends on the lease is the same share of it as with 30
/// seconds.
const LEASE: Duration = Duration::from_millis(1500);
const WORKER_URL: &str = "PITWHEEL_FAULT_WORKER";

/// Waits until the test opens the gate, then writes its effect and its completion in one transaction.
#[derive(Serialize, Deserialize)]
struct Gated;

impl Job for Gated {
    const KIND: &'static str = "gated";
}

/// Aborts its process.
#[derive(Serialize, Deserialize)]
struct Abort;

impl Job for Abort {
    const KIND: &'static str = "abort";
}

/// The worker process of the other tests. Does nothing unless the environment variable is set.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_worker_process() -> Result<()> {
    let Ok(url) = std::env::var(WORKER_URL) else { return Ok(()) };
    let pitwheel = Pitwheel::connect(&url).await?;
    let nap = async |nap: Nap, _: Context| {
        tokio::time::sleep(Duration::from_millis(nap.ms)).await; // the job's work
        Ok::<_, String>(())
    };
    let abort = async |_: Abort, _: Context| -> Result<(), String> { std::process::abort() };
    let gated = move |_: Gated, context: Context| {
        let url = url.clone();
        async move { pass_the_gate(&url, &context).await }
    };
    Worker::new(&pitwheel)
        .queue("default", 10)
        .lease(LEASE)
        .grace(Duration::ZERO)
        .handle(nap)
        .handle(abort)
        .handle(gated)
        .run(std::future::pending())
        .await?;
    Ok(())
}

async fn pass_the_gate(url: &str, context: &Context) -> Result<()> {
    let mut client = connect(url).await?;
    while client.query("select 1 from gate", &[]).await?.is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await; // between two checks
    }
    let transaction = client.transaction().await?;
    let settled = pitwheel::transaction::tokio_postgres::complete(&transaction, context).await?;
    transaction
        .execute("insert into effect values ($1, $2)", &[&context.id(), &context.claim().fence])
        .await?;
    match settled {
        Settled::Written => transaction.commit().await?,
        Settled::Lost => transaction.rollback().await?,
    }
    let lost = settled == Settled::Lost;
    client.execute("insert into attempted values ($1, $2)", &[&context.claim().fence, &lost]).await?;
    Ok(())
}

const TABLES: &str = "create table gate (open bool); create table effect (job bigint, fence bigint);
    create table attempted (fence bigint, lost bool)";

/// A worker in a process of its own.
fn start_worker_process(url: &str) -> Result<ChildProcess> {
    ChildProcess::spawn_test("the_worker_process", [(WORKER_URL, url)], Stdio::null())
}

/// How many jobs the worker of this process holds. A worker's name ends with its process id.
async fn held_by(client: &Client, process: &ChildProcess) -> Result<i64> {
    let sql = "select count(*) from pitwheel.job join pitwheel.worker on worker.id = job.holder where worker.name like $1";
    Ok(client.query_one(sql, &[&format!("%:{}", process.id())]).await?.get(0))
}

async fn count(client: &Client, sql: &str) -> Result<i64> {
    Ok(client.query_one(sql, &[]).await?.get(0))
}

const DONE: &str = "select count(distinct id) from pitwheel.job_history where state = 'done'";

#[tokio::test]
async fn a_killed_worker_loses_nothing_and_is_taken_over_within_its_lease() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    db.pitwheel().enqueue_many((0..400).map(|_| NewJob::of(&Nap { ms: 50 }))).await?;
    let victim =
        format!("{}{}application_name=victim", db.url(), if db.url().contains('?') { '&' } else { '?' });
    let (mut killed, _other) = (start_worker_process(&victim)?, start_worker_process(db.url())?);
    wait_until("both workers run jobs", async || {
        Ok(count(&client, DONE).await? > 50 && held_by(&client, &killed).await? >= 10)
    })
    .await?;
    killed.kill()?;
    let sessions = "select count(*) from pg_stat_activity where application_name = 'victim'";
    wait_until("its last statements have ended", async || Ok(count(&client, sessions).await? == 0)).await?;
    let held = held_by(&client, &killed).await?;
    assert!(held > 0, "the worker was killed while it held no job");
    let given_back = async || Ok(held_by(&client, &killed).await? == 0);
    let took = time_until("its jobs are given back", given_back).await?;
    // The lease, the sweep that finds the worker, and a margin for a busy machine.
    assert!(took < LEASE * 2, "{took:?}");
    wait_until("all is done", async || Ok(count(&client, DONE).await? == 400)).await?;
    assert_eq!(count(&client, "select count(*) from pitwheel.job_history").await?, 400, "settled once each");
    let crashed = "select count(*) from pitwheel.job_history where crashes = 1 and attempt = 1";
    assert_eq!(count(&client, crashed).await?, held, "a crash is counted, but not as an attempt");
    Ok(())
}

#[tokio::test]
async fn a_worker_stopped_past_its_lease_cannot_settle_and_writes_no_second_effect() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    client.batch_execute(TABLES).await?;
    let id = db.pitwheel().enqueue(&Gated).await?.id;
    let stopped = start_worker_process(db.url())?;
    wait_until("the job runs", async || Ok(held_by(&client, &stopped).await? == 1)).await?;
    stopped.signal("STOP")?;
    let other = start_worker_process(db.url())?;
    wait_until("the other worker has the job", async || Ok(held_by(&client, &other).await? == 1)).await?;
    client.batch_execute("insert into gate values (true)").await?;
    wait_until("the other worker has completed the job", async || {
        Ok(count(&client, "select count(*) from effect").await? == 1)
    })
    .await?;
    stopped.signal("CONT")?;
    wait_until("the first worker has tried to complete it", async || {
        Ok(count(&client, "select count(*) from attempted").await? == 2)
    })
    .await?;
    assert_eq!(count(&client, "select count(*) from effect").await?, 1);
    assert_eq!(count(&client, "select fence from effect").await?, 2);
    assert_eq!(count(&client, "select fence from attempted where lost").await?, 1);
    assert_eq!(db.state(id).await?, Some(State::Done));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_crashes_under_load_keeps_every_acknowledged_job() -> Result<()> {
    let mut server = Server::start(ServerOptions::temporary())?;
    let url = server.url();
    let pitwheel = Pitwheel::connect(&url).await?;
    pitwheel.migrate().await?;
    let _workers = [start_worker_process(&url)?, start_worker_process(&url)?];
    let mut acknowledged = Vec::new();
    for round in 0..3 {
        let batch = || (0..20).map(|_| NewJob::of(&Nap { ms: 1 })).collect::<Vec<_>>();
        let begun = Instant::now();
        let enqueue = async {
            while let Ok(jobs) = pitwheel.enqueue_many(batch()).await {
                acknowledged.extend(jobs.iter().map(|job| job.id));
            }
        };
        let crash = async {
            tokio::time::sleep(Duration::from_millis(700)).await; // the load before the crash
            tokio::task::block_in_place(|| server.crash())
        };
        let ((), crashed) = tokio::join!(enqueue, crash);
        crashed?;
        assert!(begun.elapsed() >= Duration::from_millis(700), "round {round} ended before its crash");
        server.start_again()?;
        wait_until("it accepts jobs again", async || Ok(pitwheel.enqueue(&Nap { ms: 1 }).await.is_ok()))
            .await?;
    }
    assert!(
        acknowledged.len() > 100,
        "too few jobs were acknowledged to prove anything: {}",
        acknowledged.len()
    );
    let client = connect(&url).await?;
    wait_until("the queue is empty", async || {
        Ok(count(&client, "select count(*) from pitwheel.job").await? == 0)
    })
    .await?;
    let sql = "select count(distinct id) from pitwheel.job_history where id = any($1) and state = 'done'";
    let done: i64 = client.query_one(sql, &[&acknowledged]).await?.get(0);
    assert_eq!(done, acknowledged.len() as i64);
    assert_eq!(count(&client, "select count(*) - count(distinct id) from pitwheel.job_history").await?, 0);
    Ok(())
}

#[tokio::test]
async fn a_worker_whose_database_is_away_stops_when_it_is_told_to() -> Result<()> {
    let mut server = Server::start(ServerOptions::temporary())?;
    let pitwheel = Pitwheel::connect(&server.url()).await?;
    pitwheel.migrate().await?;
    pitwheel.enqueue(&Nap { ms: 600_000 }).await?;
    let started = Arc::new(Notify::new());
    let begun = started.clone();
    let nap = move |nap: Nap, _: Context| {
        begun.notify_one();
        async move {
            tokio::time::sleep(Duration::from_millis(nap.ms)).await; // the job's work
            Ok::<_, String>(())
        }
    };
    let worker = Worker::new(&pitwheel).queue("default", 10).grace(Duration::ZERO).handle(nap);
    let running = start_worker(worker);
    started.notified().await;
    server.crash()?;
    let stats = tokio::time::timeout(WAIT_MAX, running.stop()).await.context("it has not stopped")??;
    assert_eq!((stats.started, stats.settled), (1, 0));
    Ok(())
}

/// With the grace time that workers have by default.
#[tokio::test]
async fn a_worker_without_running_handlers_ends_within_seconds_although_its_database_is_away() -> Result<()> {
    let mut server = Server::start(ServerOptions::temporary())?;
    let pitwheel = Pitwheel::connect(&server.url()).await?;
    pitwheel.migrate().await?;
    pitwheel.enqueue(&Work { n: 1 }).await?;
    let [started, end, ended] = [(); 3].map(|()| Arc::new(Notify::new()));
    let signals = [started.clone(), end.clone(), ended.clone()];
    let handler = move |_: Work, _: Context| {
        let [started, end, ended] = signals.clone();
        async move {
            started.notify_one();
            end.notified().await;
            ended.notify_one();
            Ok::<_, String>(())
        }
    };
    let running = start_worker(worker(&pitwheel).handle(handler));
    started.notified().await;
    server.crash()?;
    end.notify_one();
    ended.notified().await;
    let begun = Instant::now();
    let stats = running.stop().await?;
    assert_eq!((stats.started, stats.settled), (1, 0));
    // It tries for ten seconds to write the last ending.
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    Ok(())
}

/// Server processes that do not answer, as if the network were broken, until this is dropped.
struct Silent(Vec<u32>);

/// Those of the connections that the engine has.
const CONNECTED: &str = "select pid from pg_stat_activity where application_name = 'pitwheel'";
/// The one that accepts connections.
const POSTMASTER: &str = "select split_part(pg_read_file('postmaster.pid'), e'\\n', 1)::int";

impl Silent {
    /// Those whose ids this query returns.
    async fn of(client: &Client, sql: &str) -> Result<Silent> {
        let rows = client.query(sql, &[]).await?;
        let silent = Silent(rows.iter().map(|row| row.get::<_, i32>(0).unsigned_abs()).collect());
        silent.0.iter().try_for_each(|pid| signal("STOP", *pid))?;
        Ok(silent)
    }

    /// Ends them, and with them the connections.
    fn end(self) -> Result<()> {
        self.0.iter().try_for_each(|pid| signal("TERM", *pid))
    }
}

impl Drop for Silent {
    /// A stopped process ends when it goes on. One that has ended already is no error.
    fn drop(&mut self) {
        self.0.iter().for_each(|pid| drop(signal("CONT", *pid)));
    }
}

/// Its network is broken, or its backend hangs. Others of the worker are not.
#[tokio::test]
async fn a_silent_connection_stops_the_claims_for_seconds_only() -> Result<()> {
    let server = Server::start(ServerOptions::temporary())?;
    let pitwheel = Pitwheel::connect(&server.url()).await?;
    pitwheel.migrate().await?;
    let client = connect(&server.url()).await?;
    let running = start_worker(worker(&pitwheel).handle(async |_: Work, _: Context| Ok::<_, String>(())));
    pitwheel.enqueue(&Work { n: 1 }).await?;
    time_until("it is done", async || Ok(count(&client, DONE).await? == 1)).await?;
    let last_claim =
        "select pid from pg_stat_activity where query like '-- claim.sql%' order by query_start desc limit 1";
    let silent = Silent::of(&client, last_claim).await?;
    ensure!(silent.0.len() == 1, "the worker has claimed");
    pitwheel.enqueue(&Work { n: 2 }).await?;
    let took = time_until("the next one is done", async || Ok(count(&client, DONE).await? == 2)).await?;
    assert!(took < Duration::from_secs(10), "{took:?}");
    silent.end()?;
    running.stop().await?;
    Ok(())
}

/// All connections of the worker, as if a firewall had forgotten them. New ones are open.
#[tokio::test]
async fn silent_connections_delay_endings_for_seconds_only() -> Result<()> {
    let server = Server::start(ServerOptions::temporary())?;
    let pitwheel = Pitwheel::connect(&server.url()).await?;
    pitwheel.migrate().await?;
    let client = connect(&server.url()).await?;
    let gate = Arc::new(Semaphore::new(0));
    let opened = gate.clone();
    let running = start_worker(worker(&pitwheel).handle(move |work: Work, _: Context| {
        let gate = opened.clone();
        async move {
            if work.n < 0 {
                gate.acquire().await.map_err(|closed| closed.to_string())?.forget();
            }
            Ok::<_, String>(())
        }
    }));
    let held = pitwheel.enqueue_many((1..=20).map(|n| work(-n))).await?.len();
    pitwheel.enqueue_many((0..2000).map(work)).await?;
    wait_until("the others are done", async || Ok(count(&client, DONE).await? == 2000)).await?;
    let silent = Silent::of(&client, CONNECTED).await?;
    gate.add_permits(held);
    let took = time_until("these are done", async || Ok(count(&client, DONE).await? == 2020)).await?;
    assert!(took < Duration::from_secs(15), "{took:?}");
    silent.end()?;
    running.stop().await?;
    Ok(())
}

#[tokio::test]
async fn a_connection_that_does_not_answer_takes_those_with_it_that_are_idle() -> Result<()> {
    let server = Server::start(ServerOptions::temporary())?;
    let pool = Pool::new(&server.url(), "pitwheel", 4)?;
    let client = connect(&server.url()).await?;
    let select = async |client: Arc<Session>| client.rows("select 1", &[]).await;
    let (first, second, third) = (pool.get().await?, pool.get().await?, pool.get().await?);
    drop((first, second, third));
    let silent = Silent::of(&client, CONNECTED).await?;
    assert_eq!(silent.0.len(), 3);
    assert!(pool.run_within(Duration::from_secs(1), select).await.is_err());
    pool.run_within(Duration::from_secs(10), select).await?;
    silent.end()
}

#[tokio::test]
async fn a_look_back_that_failed_after_long_is_followed_by_one_soon() -> Result<()> {
    let server = Server::start(ServerOptions::temporary())?;
    let pitwheel = Pitwheel::connect(&server.url()).await?;
    pitwheel.migrate().await?;
    let (started, end) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let signals = (started.clone(), end.clone());
    let handler = move |work: Work, _: Context| {
        let (started, end) = signals.clone();
        async move {
            if work.n == 1 {
                started.notify_one();
                end.notified().await;
            }
            Ok::<_, String>(())
        }
    };
    let (late, client) = (connect(&server.url()).await?, connect(&server.url()).await?);
    late.batch_execute("begin").await?;
    late.execute("select pitwheel.enqueue('work', '{\"n\":0}')", &[]).await?;
    pitwheel.enqueue(&Work { n: 1 }).await?;
    // Its claim moves the bound past the late one. With its only slot taken the worker makes no claims, only looks.
    let running = start_worker(Worker::new(&pitwheel).queue("default", 1).without_hints().handle(handler));
    started.notified().await;

    let postmaster = Silent::of(&client, POSTMASTER).await?;
    let connected = Silent::of(&client, CONNECTED).await?;
    tokio::time::sleep(Duration::from_secs(4)).await; // a look back is in progress for most of it
    connected.end()?;
    drop(postmaster);
    late.batch_execute("commit").await?;
    end.notify_one();
    let took = time_until("both are done", async || Ok(count(&client, DONE).await? == 2)).await?;
    assert!(took < Duration::from_secs(10), "{took:?}");
    running.stop().await?;
    Ok(())
}

#[tokio::test]
async fn a_step_after_one_without_an_answer_has_a_connection_at_once() -> Result<()> {
    let server = Server::start(ServerOptions::temporary())?;
    let client = connect(&server.url()).await?;
    let limit = Duration::from_secs(2);
    let pool = Pool::new(&server.url(), "pitwheel", 1)?.for_loops(1, limit)?;
    let step = async || pool.run(async |client| client.rows("select 1", &[]).await.map(drop)).await;
    step().await?;
    let silent = Silent::of(&client, CONNECTED).await?;
    ensure!(silent.0.len() == 1 && step().await.is_err(), "it has no answer");
    let begun = Instant::now();
    step().await?;
    assert!(begun.elapsed() < limit / 2, "{:?}", begun.elapsed());
    Ok(())
}

#[tokio::test]
async fn silent_connections_cost_a_working_worker_no_lease() -> Result<()> {
    const LEASE: Duration = Duration::from_secs(3);
    let server = Server::start(ServerOptions::temporary())?;
    let pitwheel = Pitwheel::connect(&server.url()).await?;
    pitwheel.migrate().await?;
    let (started, end) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let signals = (started.clone(), end.clone());
    let handler = move |_: Work, _: Context| {
        let (started, end) = signals.clone();
        async move {
            started.notify_one();
            end.notified().await;
            Ok::<_, String>(())
        }
    };
    let client = connect(&server.url()).await?;
    pitwheel.enqueue(work(1)).await?;
    let running = start_worker(Worker::new(&pitwheel).queue("default", 5).lease(LEASE).handle(handler));
    started.notified().await;
    // All that it has: for claims, settles, sweeps and its lease. The server accepts new ones.
    let connected = Silent::of(&client, CONNECTED).await?;
    let begun = Instant::now();
    while begun.elapsed() < 2 * LEASE {
        declare_dead(&client, Duration::ZERO, Duration::from_secs(3600)).await?;
        assert_eq!(
            count(&client, "select count(*) from pitwheel.worker where dead_at is not null").await?,
            0
        );
        tokio::time::sleep(Duration::from_millis(100)).await; // between two sweeps
    }
    connected.end()?;
    end.notify_one();
    time_until("it is done", async || Ok(count(&client, DONE).await? == 1)).await?;
    assert_eq!(running.stop().await?.lost, 0);
    Ok(())
}

#[tokio::test]
async fn endings_are_written_although_the_connection_for_hints_is_silent() -> Result<()> {
    let server = Server::start(ServerOptions::temporary())?;
    let mut options = Options::default();
    options.connections = 1;
    let pitwheel = Pitwheel::connect_with(&server.url(), options).await?;
    pitwheel.migrate().await?;
    pitwheel.enqueue_many((1..=20).map(work)).await?;
    let client = connect(&server.url()).await?;
    // That of the handle. The worker opens others.
    let connected = Silent::of(&client, CONNECTED).await?;
    let handler = async |_: Work, context: Context| {
        context.then(NewJob::raw("next", "{}"));
        Ok::<_, String>(())
    };
    // One at a time: at least as many batches as jobs.
    let running = start_worker(Worker::new(&pitwheel).queue("default", 1).handle(handler));
    let took = time_until("all are done", async || Ok(count(&client, DONE).await? == 20)).await?;
    // The wait for a connection alone, if there is no other limit, is 30 seconds.
    println!("TOOK {took:?}");
    assert!(took < Duration::from_secs(15), "{took:?}");
    connected.end()?;
    running.stop().await?;
    Ok(())
}

#[tokio::test]
async fn after_an_outage_of_three_leases_live_workers_keep_their_jobs_and_dead_ones_do_not() -> Result<()> {
    let mut server = Server::start(ServerOptions::temporary())?;
    let url = server.url();
    let pitwheel = Pitwheel::connect(&url).await?;
    pitwheel.migrate().await?;
    let client = connect(&url).await?;
    client.batch_execute(TABLES).await?;
    pitwheel.enqueue_many((0..10).map(|_| NewJob::of(&Nap { ms: 12_000 }))).await?;
    let live = start_worker_process(&url)?;
    wait_until("the first ten jobs run", async || Ok(held_by(&client, &live).await? == 10)).await?;
    let last = pitwheel.enqueue(&Nap { ms: 1 }).await?.id;
    pitwheel.enqueue_many((0..9).map(|_| NewJob::of(&Nap { ms: 60_000 }))).await?;
    client
        .batch_execute(&format!(
            "update pitwheel.job set run_at = run_at + interval '1 hour' where id = {last}"
        ))
        .await?;
    let mut dead = start_worker_process(&url)?;
    wait_until("the next nine jobs run", async || Ok(held_by(&client, &dead).await? == 9)).await?;
    dead.kill()?;
    server.crash()?;
    tokio::time::sleep(LEASE * 3).await; // the outage itself
    server.start_again()?;

    let client = connect(&url).await?;
    wait_until("the dead worker's jobs are given back", async || {
        let taken = "select count(*) from pitwheel.job where crashes > 0 and payload::text like '%12000%'";
        assert_eq!(count(&client, taken).await?, 0, "a job of the live worker was taken");
        Ok(count(&client, "select count(*) from pitwheel.job where crashes = 1").await? == 9)
    })
    .await?;
    wait_until("the live worker has finished", async || Ok(count(&client, DONE).await? == 10)).await?;
    assert_eq!(
        count(&client, "select count(*) from pitwheel.job_history where fence = 1 and crashes = 0").await?,
        10
    );
    Ok(())
}

#[tokio::test]
async fn a_job_that_aborts_its_process_is_buried_and_the_other_jobs_finish() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    let abort = db.pitwheel().enqueue(&Abort).await?.id;
    db.pitwheel().enqueue_many((0..15).map(|_| NewJob::of(&Nap { ms: 300 }))).await?;
    let (mut process, mut deaths) = (start_worker_process(db.url())?, 0);
    let begun = Instant::now();
    while count(&client, "select count(*) from pitwheel.job").await? > 0 {
        ensure!(begun.elapsed() < Duration::from_secs(40), "not done after {:?}", begun.elapsed());
        if process.has_ended()? {
            deaths += 1;
            process = start_worker_process(db.url())?;
        }
        tokio::time::sleep(Duration::from_millis(20)).await; // between two checks
    }
    let job = db.pitwheel().job(abort).await?;
    assert_eq!((job.summary.state, deaths), (State::Dead, 3));
    let message = job.errors[2]["message"].as_str().context("no message")?;
    assert!(message.contains("its worker died while running it, 3 times"), "{message}");
    assert_eq!(count(&client, DONE).await?, 15);
    assert_eq!(
        count(&client, "select count(*) from pitwheel.job_history where state = 'done' and attempt > 1")
            .await?,
        0
    );
    Ok(())
}

#[tokio::test]
async fn twenty_connections_serve_workers_that_ask_for_two_hundred() -> Result<()> {
    let server = Server::start(ServerOptions::temporary().setting("max_connections", "20"))?;
    let mut options = Options::default();
    options.connections = 1;
    let pitwheel = Pitwheel::connect_with(&server.url(), options).await?;
    pitwheel.migrate().await?;
    // Fifty workers, each with three connections and a listener.
    let nap = |_: Nap, _: Context| std::future::ready(Ok::<_, String>(()));
    let workers: Vec<_> = (0..50)
        .map(|_| start_worker(Worker::new(&pitwheel).queue("default", 5).lease(LEASE).handle(nap)))
        .collect();
    pitwheel.enqueue_many((0..2000).map(|_| NewJob::of(&Nap { ms: 0 }))).await?;
    wait_until("all is done", async || {
        Ok(pitwheel.queues().await?.iter().all(|queue| queue.waiting + queue.running == 0))
    })
    .await?;
    let mut settled = 0;
    for worker in workers {
        settled += worker.stop().await?.settled;
    }
    assert_eq!(settled, 2000);
    Ok(())
}
