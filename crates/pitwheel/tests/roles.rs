//! Roles with rights on rows only, as docs/roles.md grants them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use pitwheel::engine::{Pool, Sql};
use pitwheel::{Context, NewJob, NewRecurring, Pitwheel};
use pitwheel_testkit::{TestDb, WAIT_MAX, Work, start_worker, wait_until, work, worker};
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_postgres::error::SqlState;

/// Creates the role as the document does, under a name of this test, and connects as it.
async fn connect_as(db: &TestDb, role: &str) -> Result<(Pitwheel, String)> {
    let (url, name) = create_role(db, role).await?;
    Ok((Pitwheel::connect(&url).await?, name))
}

/// Returns the URL and the name.
async fn create_role(db: &TestDb, role: &str) -> Result<(String, String)> {
    let client = db.client().await?;
    let database: String = client.query_one("select current_database()::text", &[]).await?.get(0);
    let name = format!("{role}_{database}");
    let document = include_str!("../../../docs/roles.md");
    let block = document.split("```sql\n").find(|block| block.starts_with(&format!("create role {role} ")));
    let sql = block.and_then(|block| block.split("```").next()).context("the document has no such role")?;
    client.batch_execute(&sql.replace(role, &name)).await?;
    let mut url: tokio_postgres::Config = db.url().parse()?;
    url.user(&name);
    let host = match &url.get_hosts()[0] {
        tokio_postgres::config::Host::Tcp(host) => host.clone(),
        other => anyhow::bail!("the test server is not reached by TCP: {other:?}"),
    };
    Ok((format!("postgres://{name}@{host}:{}/{database}", url.get_ports()[0]), name))
}

async fn drop_role(db: &TestDb, name: &str) -> Result<()> {
    Ok(db.client().await?.batch_execute(&format!("drop owned by {name}; drop role {name}")).await?)
}

/// One connection for the handle, one for the lease and one that listens are all that the role may have. The first claim takes that of the
/// lease.
#[tokio::test]
async fn a_worker_without_a_connection_for_its_lease_renews_it_on_another() -> Result<()> {
    const LEASE: Duration = Duration::from_secs(2);
    let db = TestDb::new().await?;
    let (pitwheel, role) = connect_as(&db, "pitwheel_worker").await?;
    db.client().await?.batch_execute(&format!("alter role {role} connection limit 3")).await?;
    let gate = Arc::new(Notify::new());
    let (opened, started) = (gate.clone(), Arc::new(Notify::new()));
    let starts = started.clone();
    let handler = move |_: Work, _: Context| {
        let (gate, started) = (gate.clone(), started.clone());
        async move {
            started.notify_one();
            gate.notified().await;
            Ok::<_, String>(())
        }
    };
    let running = start_worker(worker(&pitwheel).lease(LEASE).handle(handler));
    pitwheel.enqueue(work(1)).await?;
    timeout(WAIT_MAX, starts.notified()).await?;
    // The time that is tested: several leases.
    let begun = Instant::now();
    while begun.elapsed() < 3 * LEASE {
        db.sweep().await?;
        assert_eq!(db.count("select count(*) from pitwheel.worker where dead_at is not null").await?, 0);
        tokio::time::sleep(Duration::from_millis(100)).await; // between two sweeps
    }
    opened.notify_one();
    let done = "select count(*) from pitwheel.job_history where state = 'done'";
    wait_until("the job is done", async || Ok(db.count(done).await? == 1)).await?;
    assert_eq!(running.stop().await?.lost, 0);
    drop(pitwheel);
    drop_role(&db, &role).await
}

/// The only connection that the role may have belongs to the other pool, and is in use.
#[tokio::test]
async fn a_renewal_waits_for_a_connection_that_is_in_use() -> Result<()> {
    let db = TestDb::new().await?;
    let (url, role) = create_role(&db, "pitwheel_worker").await?;
    db.client().await?.batch_execute(&format!("alter role {role} connection limit 1")).await?;
    let main = Pool::new(&url, "test", 4)?;
    let lease = main.for_loops(2, WAIT_MAX)?;
    main.run(async |client| client.rows("select 1", &[]).await.map(drop)).await?;
    let lock = db.client().await?;
    lock.batch_execute("begin; lock table pitwheel.sweep_tick").await?;
    let busy = main
        .run(async |client| client.rows("select ticked_at from pitwheel.sweep_tick", &[]).await.map(drop));
    let renewed = lease.run_or_borrow(&main, async |client| client.rows("select 1", &[]).await.map(drop));
    let unlock = async {
        let waits = "select count(*) from pg_locks where not granted";
        wait_until("the other waits", async || Ok(db.count(waits).await? == 1)).await?;
        tokio::time::sleep(Duration::from_millis(500)).await; // so that the renewal meets it
        Ok::<_, anyhow::Error>(lock.batch_execute("commit").await?)
    };
    let (busy, renewed, unlocked) = tokio::join!(busy, renewed, unlock);
    busy.and(renewed)?;
    unlocked?;
    drop((main, lease));
    drop_role(&db, &role).await
}

#[tokio::test]
async fn a_worker_needs_no_rights_but_those_on_rows() -> Result<()> {
    let db = TestDb::new().await?;
    let (pitwheel, role) = connect_as(&db, "pitwheel_worker").await?;
    assert!(pitwheel.migrate().await?.is_empty(), "a current schema needs nothing");
    let handler = async |work: Work, context: Context| {
        context.progress(0.5, "half");
        if work.n == 0 { Err("once".to_owned()) } else { Ok(()) }
    };
    // It restores the rows that only migrations insert, too.
    let delete = "delete from pitwheel.used_priority; delete from pitwheel.sweep_tick;
        delete from pitwheel.alone_turn; delete from pitwheel.outbox_shard";
    db.client().await?.batch_execute(delete).await?;
    let running = start_worker(worker(&pitwheel).handle(handler));
    pitwheel.enqueue_many((0..50).map(|n| work(n).max_attempts(1))).await?;
    let finished = "select count(*) from pitwheel.job_history";
    wait_until("all are finished", async || Ok(db.count(finished).await? == 50)).await?;
    running.stop().await?;

    // Tomorrow's partition is missing: the prune makes it, with the rights of the owner.
    let partitions = "select count(*) from pg_inherits where inhparent = 'pitwheel.job_history'::regclass";
    let before = db.count(partitions).await?;
    let drop_tomorrow = "do $$ begin execute format('drop table pitwheel.%I',
        'job_history_' || to_char((now() at time zone 'utc')::date + 1, 'YYYYMMDD')); end $$";
    db.client().await?.batch_execute(drop_tomorrow).await?;
    pitwheel.prune_history(Duration::from_secs(7 * 86400)).await?;
    assert_eq!(db.count(partitions).await?, before);
    drop(pitwheel);
    drop_role(&db, &role).await
}

/// A view that a migration has added since the role got its rights.
#[tokio::test]
async fn a_worker_reads_a_view_without_rights_of_its_own() -> Result<()> {
    let db = TestDb::new().await?;
    let (pitwheel, role) = connect_as(&db, "pitwheel_worker").await?;
    db.client().await?.batch_execute(&format!("revoke all on pitwheel.recurring_now from {role}")).await?;
    let job = pitwheel.recurring().create(NewRecurring::raw("test", "{}", "k", "every 1h".parse()?)).await?;
    assert!(pitwheel.recurring().enable(job.id).await?.enabled);
    let (producer, other) = connect_as(&db, "pitwheel_producer").await?;
    assert!(producer.recurring().get(job.id).await.is_err(), "it may not read the tables of the view");
    drop((pitwheel, producer));
    drop_role(&db, &role).await?;
    drop_role(&db, &other).await
}

#[tokio::test]
async fn a_producer_enqueues_and_can_do_nothing_else() -> Result<()> {
    let db = TestDb::new().await?;
    let (pitwheel, role) = connect_as(&db, "pitwheel_producer").await?;
    pitwheel.check_schema().await?;
    let key = || NewJob::raw("test", "{}").key("k");
    let first = pitwheel.enqueue(key()).await?;
    assert_eq!(pitwheel.enqueue(key()).await?.id, first.id, "a key finds the live job");
    pitwheel.enqueue_many((0..3).map(|n| work(n).priority(5))).await?;
    assert!(pitwheel.cancel(first.id).await.is_err());
    assert!(pitwheel.prune_history(Duration::ZERO).await.is_err());
    let prune_outbox = format!("set role {role}; select pitwheel.prune_outbox('0')");
    let refused = db.client().await?.batch_execute(&prune_outbox).await.expect_err("it drops tables");
    assert_eq!(refused.code().map(SqlState::code), Some("42501"), "{refused}");
    assert_eq!(db.count("select count(*) from pitwheel.job").await?, 4);
    // Of two jobs of a lane the first is promoted, with the rights of the owner.
    pitwheel.enqueue_many((0..2).map(|n| work(n).lane("a"))).await?;
    let heads = "select count(*) from pitwheel.job where lane is not null and run_at < 'infinity'";
    assert_eq!(db.count(heads).await?, 1);
    drop(pitwheel);
    drop_role(&db, &role).await
}
