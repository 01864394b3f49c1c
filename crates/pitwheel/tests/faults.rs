//! Faults with real processes: killed, stopped and aborted workers, a database that crashes, stays away, or has no room.
//!
//! The worker processes are this test binary, started again with `PITWHEEL_FAULT_WORKER` set to a database URL.

mod support;

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use pitwheel::{Context, Job, NewJob, Options, Pitwheel, Settled, State, Worker};
use pitwheel_devdb::{Options as ServerOptions, Server};
use pitwheel_testkit::TestDb;
use serde::{Deserialize, Serialize};
use support::{start, until};
use tokio_postgres::{Client, NoTls};

/// Short, so that the tests are; the shares of a lease are the same as with thirty seconds.
const LEASE: Duration = Duration::from_millis(1500);
const WORKER_URL: &str = "PITWHEEL_FAULT_WORKER";

/// Ends by itself.
#[derive(Serialize, Deserialize)]
struct Nap {
    ms: u64,
}

impl Job for Nap {
    const KIND: &'static str = "nap";
}

/// Waits until the test opens the gate, then writes its effect together with its completion.
#[derive(Serialize, Deserialize)]
struct Gated;

impl Job for Gated {
    const KIND: &'static str = "gated";
}

/// Takes its process with it.
#[derive(Serialize, Deserialize)]
struct Abort;

impl Job for Abort {
    const KIND: &'static str = "abort";
}

async fn connect(url: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// The worker's side of every test here; nothing unless the environment asks for it.
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
    let parent_is_gone = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    Worker::new(&pitwheel)
        .queue("default", 10)
        .lease(LEASE)
        .grace(Duration::ZERO)
        .handle(nap)
        .handle(abort)
        .handle(gated)
        .run(async {
            let _ = parent_is_gone.await;
        })
        .await?;
    Ok(())
}

async fn pass_the_gate(url: &str, context: &Context) -> Result<()> {
    let mut client = connect(url).await?;
    while client.query("select 1 from gate", &[]).await?.is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await; // between two looks
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
    client.execute("insert into tried values ($1, $2)", &[&context.claim().fence, &lost]).await?;
    Ok(())
}

const TABLES: &str = "create table gate (open bool); create table effect (job bigint, fence bigint);
    create table tried (fence bigint, lost bool)";

/// A worker process, ended with the test.
struct Process(Child);

impl Process {
    fn start(url: &str) -> Result<Process> {
        let child = Command::new(std::env::current_exe()?)
            .args(["--exact", "the_worker_process", "--nocapture"])
            .env(WORKER_URL, url)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Process(child))
    }

    fn signal(&self, name: &str) -> Result<()> {
        let sent = Command::new("kill").args(["-s", name, &self.0.id().to_string()]).status()?;
        ensure!(sent.success(), "could not send {name}");
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The pid is in the worker's name.
async fn holds(client: &Client, process: &Process) -> Result<i64> {
    let sql = "select count(*) from pitwheel.job join pitwheel.worker on worker.id = job.holder where worker.name like $1";
    Ok(client.query_one(sql, &[&format!("%:{}", process.0.id())]).await?.get(0))
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
    let (mut doomed, _other) = (Process::start(db.url())?, Process::start(db.url())?);
    until("both are at work", async || {
        Ok(count(&client, DONE).await? > 50 && holds(&client, &doomed).await? == 10)
    })
    .await?;
    doomed.0.kill()?;
    let killed = Instant::now();
    let held = holds(&client, &doomed).await?;
    assert!(held > 0, "killed while nothing ran");
    until("what it held is given back", async || Ok(holds(&client, &doomed).await? == 0)).await?;
    // A lease, the tick that finds it, and what a busy machine adds.
    assert!(killed.elapsed() < LEASE * 2, "{:?}", killed.elapsed());
    until("all is done", async || Ok(count(&client, DONE).await? == 400)).await?;
    assert_eq!(count(&client, "select count(*) from pitwheel.job_history").await?, 400, "settled once each");
    let crashed = "select count(*) from pitwheel.job_history where crashes = 1 and attempt = 1";
    assert_eq!(count(&client, crashed).await?, held, "a crash is counted, but not as an attempt");
    Ok(())
}

#[tokio::test]
async fn a_worker_stopped_past_its_lease_cannot_settle_and_leaves_no_second_effect() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    client.batch_execute(TABLES).await?;
    let id = db.pitwheel().enqueue(&Gated).await?.id;
    let stopped = Process::start(db.url())?;
    until("it runs", async || Ok(holds(&client, &stopped).await? == 1)).await?;
    stopped.signal("STOP")?;
    let other = Process::start(db.url())?;
    until("the other has it", async || Ok(holds(&client, &other).await? == 1)).await?;
    client.batch_execute("insert into gate values (true)").await?;
    until("the other has done it", async || Ok(count(&client, "select count(*) from effect").await? == 1))
        .await?;
    stopped.signal("CONT")?;
    until("the first has tried too", async || Ok(count(&client, "select count(*) from tried").await? == 2))
        .await?;
    assert_eq!(count(&client, "select count(*) from effect").await?, 1);
    assert_eq!(count(&client, "select fence from effect").await?, 2);
    assert_eq!(count(&client, "select fence from tried where lost").await?, 1);
    assert_eq!(db.state(id).await?, Some(State::Done));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_crashes_under_load_keeps_every_acknowledged_job() -> Result<()> {
    let mut server = Server::start(ServerOptions::temporary())?;
    let url = server.url();
    let pitwheel = Pitwheel::connect(&url).await?;
    pitwheel.migrate().await?;
    let _workers = [Process::start(&url)?, Process::start(&url)?];
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
            tokio::time::sleep(Duration::from_millis(700)).await; // load, before the crash that ends it
            tokio::task::block_in_place(|| server.crash())
        };
        let ((), crashed) = tokio::join!(enqueue, crash);
        crashed?;
        assert!(begun.elapsed() >= Duration::from_millis(700), "round {round} ended before its crash");
        server.start_again()?;
        until("it takes jobs again", async || Ok(pitwheel.enqueue(&Nap { ms: 1 }).await.is_ok())).await?;
    }
    assert!(
        acknowledged.len() > 100,
        "too little was acknowledged to prove anything: {}",
        acknowledged.len()
    );
    let client = connect(&url).await?;
    until("the queue is empty", async || Ok(count(&client, "select count(*) from pitwheel.job").await? == 0))
        .await?;
    let sql = "select count(distinct id) from pitwheel.job_history where id = any($1) and state = 'done'";
    let done: i64 = client.query_one(sql, &[&acknowledged]).await?.get(0);
    assert_eq!(done, acknowledged.len() as i64);
    assert_eq!(count(&client, "select count(*) - count(distinct id) from pitwheel.job_history").await?, 0);
    Ok(())
}

#[tokio::test]
async fn after_three_leases_without_a_database_the_living_keep_their_jobs_and_the_dead_do_not() -> Result<()>
{
    let mut server = Server::start(ServerOptions::temporary())?;
    let url = server.url();
    let pitwheel = Pitwheel::connect(&url).await?;
    pitwheel.migrate().await?;
    let client = connect(&url).await?;
    client.batch_execute(TABLES).await?;
    pitwheel.enqueue_many((0..10).map(|_| NewJob::of(&Nap { ms: 12_000 }))).await?;
    let living = Process::start(&url)?;
    until("the first ten run", async || Ok(holds(&client, &living).await? == 10)).await?;
    let last = pitwheel.enqueue(&Nap { ms: 1 }).await?.id;
    pitwheel.enqueue_many((0..9).map(|_| NewJob::of(&Nap { ms: 60_000 }))).await?;
    client
        .batch_execute(&format!(
            "update pitwheel.job set run_at = run_at + interval '1 hour' where id = {last}"
        ))
        .await?;
    let mut dying = Process::start(&url)?;
    until("the next nine run", async || Ok(holds(&client, &dying).await? == 9)).await?;
    dying.0.kill()?;
    server.crash()?;
    tokio::time::sleep(LEASE * 3).await; // the outage itself
    server.start_again()?;

    let client = connect(&url).await?;
    until("the dead worker's jobs are given back", async || {
        let reaped = "select count(*) from pitwheel.job where crashes > 0 and payload::text like '%12000%'";
        assert_eq!(count(&client, reaped).await?, 0, "a living worker's job was taken");
        Ok(count(&client, "select count(*) from pitwheel.job where crashes = 1").await? == 9)
    })
    .await?;
    until("the living worker finished", async || Ok(count(&client, DONE).await? == 10)).await?;
    assert_eq!(
        count(&client, "select count(*) from pitwheel.job_history where fence = 1 and crashes = 0").await?,
        10
    );
    Ok(())
}

#[tokio::test]
async fn a_job_that_aborts_its_process_is_buried_and_its_neighbours_finish() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    let abort = db.pitwheel().enqueue(&Abort).await?.id;
    db.pitwheel().enqueue_many((0..15).map(|_| NewJob::of(&Nap { ms: 300 }))).await?;
    let (mut process, mut deaths) = (Process::start(db.url())?, 0);
    let begun = Instant::now();
    while count(&client, "select count(*) from pitwheel.job").await? > 0 {
        ensure!(begun.elapsed() < Duration::from_secs(40), "not done after {:?}", begun.elapsed());
        if process.0.try_wait()?.is_some() {
            deaths += 1;
            process = Process::start(db.url())?;
        }
        tokio::time::sleep(Duration::from_millis(20)).await; // between two looks
    }
    let job = db.pitwheel().job(abort).await?;
    assert_eq!((job.summary.state, deaths), (State::Dead, 3));
    let reason = job.errors[2]["message"].as_str().context("no reason")?;
    assert!(reason.contains("its worker died while running it, 3 times"), "{reason}");
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
    let workers: Vec<_> =
        (0..50).map(|_| start(Worker::new(&pitwheel).queue("default", 5).lease(LEASE).handle(nap))).collect();
    pitwheel.enqueue_many((0..2000).map(|_| NewJob::of(&Nap { ms: 0 }))).await?;
    until("all is done", async || {
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
