//! Roles with rights on rows only, as docs/roles.md grants them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use pitwheel::engine::{Pool, Sql};
use pitwheel::{Context, NewJob, NewPipeline, NewRecurring, Pitwheel};
use pitwheel_testkit::{TestDb, WAIT_MAX, Work, connect, start_worker, wait_until, work, worker};
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
    let create =
        statements(&format!("create role {role} ")).next().context("the document has no such role")?;
    client.batch_execute(&create.replace(role, &name)).await?;
    let mut url: tokio_postgres::Config = db.url().parse()?;
    url.user(&name);
    let host = match &url.get_hosts()[0] {
        tokio_postgres::config::Host::Tcp(host) => host.clone(),
        other => anyhow::bail!("the test server is not reached by TCP: {other:?}"),
    };
    Ok((format!("postgres://{name}@{host}:{}/{database}", url.get_ports()[0]), name))
}

/// The blocks of the document that begin with these words.
fn statements(begin: &str) -> impl Iterator<Item = &'static str> {
    let blocks = include_str!("../../../docs/roles.md")
        .split("```sql\n")
        .filter_map(|block| block.split("```").next());
    blocks.filter(move |block| block.starts_with(begin))
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
        wait_until("the other waits", async || Ok(db.lock_waits().await? == 1)).await?;
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
    for (sql, why) in [
        ("select pitwheel.prune_outbox('0')", "it drops tables"),
        ("select payload from pitwheel.job", "payloads may be redacted"),
        (
            "insert into pitwheel.job (kind, payload, queue, run_at, enqueued_at, priority, max_attempts, recurring)
            values ('test', '{}', 'default', now(), now(), 0, 1, 7)",
            "it would run a recurring job that may be disabled",
        ),
    ] {
        let refused = db.client().await?.batch_execute(&format!("set role {role}; {sql}")).await;
        let refused = refused.expect_err(why);
        assert_eq!(refused.code().map(SqlState::code), Some("42501"), "{why}: {refused}");
    }
    assert_eq!(db.count("select count(*) from pitwheel.job").await?, 4);
    // Of two jobs of a lane the first is promoted, with the rights of the owner.
    pitwheel.enqueue_many((0..2).map(|n| work(n).lane("a"))).await?;
    let heads = "select count(*) from pitwheel.job where lane is not null and run_at < 'infinity'";
    assert_eq!(db.count(heads).await?, 1);
    drop(pitwheel);
    drop_role(&db, &role).await
}

#[tokio::test]
async fn a_producer_with_more_rights_creates_pipelines_and_adds_events() -> Result<()> {
    let db = TestDb::new().await?;
    let (url, role) = create_role(&db, "pitwheel_producer").await?;
    let more: Vec<&str> = statements("grant ").filter(|block| block.contains("pitwheel_producer")).collect();
    assert_eq!(more.len(), 2, "for pipelines and for events");
    for block in more {
        db.client().await?.batch_execute(&block.replace("pitwheel_producer", &role)).await?;
    }
    let pitwheel = Pitwheel::connect(&url).await?;
    let steps = NewPipeline::new("import").step("first", work(1)).step("second", work(2)).after(["first"]);
    pitwheel.pipelines().create(steps).await?;
    assert_eq!(db.count("select count(*) from pitwheel.job where step = 'first'").await?, 1);
    let client = connect(&url).await?;
    client.batch_execute("select pitwheel.enqueue('test', '{}', key => 'k', lane => '\"a\"')").await?;
    client.batch_execute("select pitwheel.add_event('order-7', 'orders', 'order.paid', '{}')").await?;
    assert_eq!(db.count("select count(*) from pitwheel.outbox").await?, 1);
    drop((pitwheel, client));
    drop_role(&db, &role).await
}

/// Without one, a caller could put functions of its own in front of those that the owner calls.
#[tokio::test]
async fn every_function_with_the_rights_of_the_owner_has_a_search_path_of_its_own() -> Result<()> {
    let db = TestDb::new().await?;
    let owned = "select count(*) from pg_proc where pronamespace = 'pitwheel'::regnamespace and prosecdef";
    assert!(db.count(owned).await? > 0);
    let pinned = format!("{owned} and 'search_path=pg_catalog, pg_temp' = any (proconfig)");
    assert_eq!(db.count(&pinned).await?, db.count(owned).await?);
    Ok(())
}
