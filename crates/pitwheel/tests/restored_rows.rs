//! Rows that only migrations insert come back if they were deleted, and what depends on them goes on without a restart.

use std::time::Duration;

use anyhow::Result;
use pitwheel::Context;
use pitwheel::engine::outbox::{RelayOptions, Shards};
use pitwheel::engine::{RestoredRows, restore_rows};
use pitwheel_testkit::{
    TestDb, Warnings, Work, event_ids, start_worker, take_events, wait_until, work, worker,
};

const DELETE: &str = "delete from pitwheel.used_priority; delete from pitwheel.sweep_tick;
    delete from pitwheel.alone_turn; delete from pitwheel.outbox_shard";
/// As a test suite does that empties all tables. Without the row of a migration no process starts, which is an error of its own.
const TRUNCATE: &str = "do $$ begin execute (
        select 'truncate ' || string_agg(format('%I.%I', schemaname, tablename), ', ') || ' restart identity cascade'
        from pg_tables where schemaname = 'pitwheel' and tablename <> 'migration'
    ); end $$";
const DONE: &str = "select count(*) from pitwheel.job_history where state = 'done'";
const TICKS: &str = "select count(*) from pitwheel.sweep_tick";
const TURNS: &str = "select count(*) from pitwheel.alone_turn";
const SHARDS: &str = "select count(*) from pitwheel.outbox_shard where relay is null";

async fn handler(_: Work, _: Context) -> Result<(), String> {
    Ok(())
}

#[tokio::test]
async fn a_worker_goes_on_after_its_tables_were_emptied() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    let running = start_worker(worker(db.pitwheel()).lease(Duration::from_secs(3)).handle(handler));
    for emptied in [DELETE, TRUNCATE] {
        let done = db.count(DONE).await?;
        db.pitwheel().enqueue(work(1)).await?;
        wait_until("a job is done", async || Ok(db.count(DONE).await? == done + 1)).await?;

        client.batch_execute(emptied).await?;
        let done = db.count(DONE).await?;
        db.pitwheel().enqueue_many([work(2), work(3).priority(5)]).await?;
        wait_until("the next ones are done", async || Ok(db.count(DONE).await? == done + 2)).await?;
        wait_until("all rows are back", async || {
            Ok((db.count(TICKS).await?, db.count(TURNS).await?, db.count(SHARDS).await?) == (1, 1, 64))
        })
        .await?;
    }
    running.stop().await?;
    Ok(())
}

#[tokio::test]
async fn a_worker_that_starts_without_the_rows_runs_jobs_and_suspects() -> Result<()> {
    let db = TestDb::new().await?;
    db.pitwheel().enqueue_many((0..10).map(work)).await?;
    let client = db.client().await?;
    client
        .batch_execute("update pitwheel.job set crashes = 2 where id = (select max(id) from pitwheel.job)")
        .await?;
    client.batch_execute(DELETE).await?;
    let running = start_worker(worker(db.pitwheel()).handle(handler));
    wait_until("all are done", async || Ok(db.count(DONE).await? == 10)).await?;
    running.stop().await?;
    Ok(())
}

#[tokio::test]
async fn only_what_is_missing_is_written() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    let wrote = "select pg_current_xact_id_if_assigned() is not null";
    client.batch_execute("begin").await?;
    assert_eq!(restore_rows(&client).await?.0, RestoredRows::default());
    assert!(!client.query_one(wrote, &[]).await?.get::<_, bool>(0), "it writes nothing");
    client.batch_execute("commit").await?;

    client.batch_execute("delete from pitwheel.outbox_shard where shard in (7, 63)").await?;
    assert_eq!(restore_rows(&client).await?.0, RestoredRows { shards: 2, ..RestoredRows::default() });
    client.batch_execute(DELETE).await?;
    let all = RestoredRows { priorities: 19, ticks: 1, turns: 1, shards: 64 };
    assert_eq!(restore_rows(&client).await?.0, all);
    assert_eq!(restore_rows(&client).await?.0, RestoredRows::default());
    Ok(())
}

#[tokio::test]
async fn waiting_jobs_of_any_priority_are_claimed_again() -> Result<()> {
    let db = TestDb::new().await?;
    db.pitwheel().enqueue_many([work(1), work(2).priority(5), work(3).priority(-9)]).await?;
    let client = db.client().await?;
    client.batch_execute("update pitwheel.job set kind = 'test'").await?;
    client.batch_execute(DELETE).await?;
    assert!(db.claim(5).await?.is_empty());
    restore_rows(&client).await?;
    assert_eq!(db.claim(5).await?.len(), 3);
    Ok(())
}

#[tokio::test]
async fn a_worker_is_declared_dead_again_and_not_for_the_time_without_sweeps() -> Result<()> {
    let db = TestDb::new().await?;
    let holder = db.register().await?;
    db.job().insert().await?;
    assert_eq!(db.claim_as(holder, 1).await?.len(), 1);
    let client = db.client().await?;
    client.batch_execute(DELETE).await?;
    db.expire(holder).await?;
    assert!(db.sweep().await?.dead.is_empty(), "there is no tick");

    restore_rows(&client).await?;
    let first = db.sweep().await?;
    assert!(first.leases_extended && first.dead.is_empty(), "{first:?}");
    assert!(db.sweep().await?.dead.is_empty(), "it has a whole lease");
    db.expire(holder).await?;
    assert_eq!(db.sweep().await?.released, 1);
    Ok(())
}

#[tokio::test]
async fn a_relay_sends_the_events_of_restored_shards() -> Result<()> {
    let db = TestDb::new().await?;
    let pool = db.pitwheel().pool_for_loops(2, Duration::from_secs(10))?;
    // A lease far longer than the test takes.
    let options =
        RelayOptions { name: "one".to_owned(), lease: Duration::from_secs(600), ..RelayOptions::default() };
    let mut relay = Shards::new(pool, options)?;
    take_events(&mut relay).await?;
    assert_eq!(relay.held().len(), 64);
    let client = db.client().await?;
    client.batch_execute(DELETE).await?;
    let added = db.add_events(&["a", "b", "c"]).await?;
    take_events(&mut relay).await?;
    assert!(take_events(&mut relay).await?.is_empty(), "it holds no shard");

    restore_rows(&client).await?;
    assert_eq!(event_ids(&take_events(&mut relay).await?), added);
    Ok(())
}

#[tokio::test]
async fn what_was_restored_is_logged_once() -> Result<()> {
    let db = TestDb::new().await?;
    let warnings = Warnings::of_this_thread();
    let lease = Duration::from_secs(3);
    let running = start_worker(worker(db.pitwheel()).lease(lease).handle(handler));
    db.client().await?.batch_execute("delete from pitwheel.sweep_tick").await?;
    wait_until("it is back", async || Ok(db.count(TICKS).await? == 1)).await?;
    // Sweeps, and so the whole maintenance, go on several times.
    for _ in 0..3 {
        let last: std::time::SystemTime =
            db.client().await?.query_one("select ticked_at from pitwheel.sweep_tick", &[]).await?.get(0);
        wait_until("the next sweep", async || {
            let now = db.client().await?.query_one("select ticked_at from pitwheel.sweep_tick", &[]).await?;
            Ok(now.get::<_, std::time::SystemTime>(0) > last)
        })
        .await?;
    }
    running.stop().await?;
    let logged: Vec<String> =
        warnings.texts().into_iter().filter(|warning| warning.contains(" restored=")).collect();
    assert_eq!(logged.len(), 1, "{logged:?}");
    assert!(logged[0].contains("ticks: 1"), "{logged:?}");
    Ok(())
}
