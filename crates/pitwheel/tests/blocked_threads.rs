//! The lease of a worker does not depend on the runtime of its handlers.

use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use anyhow::Result;
use pitwheel::engine::declare_dead;
use pitwheel::{Context, Options, Pitwheel, Stats};
use pitwheel_testkit::{TestDb, WAIT_MAX, Work, start_worker, wait_until, work, worker};
use tokio::runtime::Builder;
use tokio::sync::{oneshot, watch};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

const LEASE: Duration = Duration::from_secs(2);

#[tokio::test]
async fn a_handler_that_blocks_the_only_thread_costs_no_lease() -> Result<()> {
    blocked_handlers_cost_no_lease(Builder::new_current_thread(), 1).await
}

#[tokio::test]
async fn handlers_that_block_every_thread_cost_no_lease() -> Result<()> {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(2);
    blocked_handlers_cost_no_lease(builder, 2).await
}

/// Runs a worker with a runtime of its own, until so many handlers block all threads of it. Lets them end after several leases.
async fn blocked_handlers_cost_no_lease(mut builder: Builder, threads: usize) -> Result<()> {
    let jobs = 2 * threads;
    let db = TestDb::new().await?;
    db.pitwheel().enqueue_many((0..).take(jobs).map(work)).await?;
    let (blocked, mut handlers) = watch::channel(0);
    // If the test fails, the gate is dropped, and the handlers end.
    let (gate, opened) = mpsc::channel::<()>();
    let opened = Arc::new(Mutex::new(opened));
    let handler = move |_: Work, _: Context| {
        let (blocked, opened) = (blocked.clone(), opened.clone());
        async move {
            blocked.send_modify(|count| *count += 1);
            let _ = opened.lock().unwrap_or_else(PoisonError::into_inner).recv();
            Ok::<_, String>(())
        }
    };
    let (stop, stopped) = oneshot::channel::<()>();
    let url = db.url().to_owned();
    let running = spawn_blocking(move || -> Result<Stats> {
        builder.enable_all().build()?.block_on(async {
            let pitwheel = Pitwheel::connect(&url).await?;
            let stopped = async { drop(stopped.await) };
            Ok(worker(&pitwheel).lease(LEASE).handle(handler).run(stopped).await?)
        })
    });
    timeout(WAIT_MAX, handlers.wait_for(|blocked| *blocked == threads)).await??;

    // The time that is tested: several leases.
    let (client, begun) = (db.client().await?, Instant::now());
    while begun.elapsed() < 3 * LEASE {
        declare_dead(&client, Duration::ZERO, Duration::from_secs(3600)).await?;
        assert_eq!(db.count("select count(*) from pitwheel.worker where dead_at is not null").await?, 0);
        tokio::time::sleep(Duration::from_millis(100)).await; // between two sweeps
    }
    (0..jobs).try_for_each(|_| gate.send(()))?;
    let done = "select count(*) from pitwheel.job_history where state = 'done' and fence = 1 and crashes = 0";
    wait_until("all are done", async || Ok(db.count(done).await? == jobs as i64)).await?;
    let _ = stop.send(());
    let stats = timeout(WAIT_MAX, running).await???;
    assert_eq!((stats.started, stats.settled, stats.lost), (jobs as u64, jobs as u64, 0));
    Ok(())
}

/// Among them that of the thread that renews the lease.
#[tokio::test]
async fn a_worker_that_is_dropped_leaves_no_connection_open() -> Result<()> {
    let db = TestDb::new().await?;
    let mut options = Options::default();
    options.application = "dropped".to_owned();
    let pitwheel = Pitwheel::connect_with(db.url(), options).await?;
    let running =
        start_worker(worker(&pitwheel).lease(LEASE).handle(async |_: Work, _: Context| Ok::<_, String>(())));
    let open = "select count(*) from pg_stat_activity
        where application_name = 'dropped' and datname = current_database()";
    // The last statement of a heartbeat.
    let renewed = format!("{open} and query like '-- cancel_requests.sql:%'");
    wait_until("it has renewed its lease", async || Ok(db.count(&renewed).await? == 1)).await?;
    running.kill();
    drop(pitwheel);
    wait_until("its connections are closed", async || Ok(db.count(open).await? == 0)).await?;
    Ok(())
}
