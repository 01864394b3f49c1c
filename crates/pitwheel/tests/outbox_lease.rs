//! The lease of a relay, for every strategy: once it was lost, nothing that is on its way may go on.

use std::time::{Duration, Instant};

use anyhow::Result;
use pitwheel::engine::outbox::{Entities, EntityLock, RelayOptions, Shards, SourceTable, Strategy};
use pitwheel_testkit::{TestDb, WAIT_MAX};

/// Short, so that renewals are due soon.
const LEASE: Duration = Duration::from_millis(500);
const RELAYS: &str = "select count(*) from pitwheel.outbox_relay";

async fn database() -> Result<TestDb> {
    let db = TestDb::new().await?;
    let setup = "create index on pitwheel.outbox (entity_key, id); select pitwheel.add_event('a', 'orders', 'changed', 'x')";
    db.client().await?.batch_execute(setup).await?;
    Ok(db)
}

async fn stops_when_its_lease_is_lost(db: &TestDb, mut relay: impl Strategy) -> Result<()> {
    let batch = relay.take(10).await?;
    assert_eq!((batch.events.len(), db.count(RELAYS).await?), (1, 1));
    db.client().await?.batch_execute("delete from pitwheel.outbox_relay").await?;
    // A sink is still at it, and the relay renews.
    let begun = Instant::now();
    while relay.acknowledge(&[]).await?.deadline > Instant::now() {
        assert!(begun.elapsed() < WAIT_MAX, "the deadline moves on");
        tokio::time::sleep(LEASE / 50).await; // between two renewals
    }
    assert_eq!(db.count(RELAYS).await?, 0, "it registers when nothing is on its way: with the next take");
    assert!(!relay.holds(&batch.events[0]));
    assert_eq!(relay.take(10).await?.events.len(), 1);
    assert_eq!(db.count(RELAYS).await?, 1);
    Ok(())
}

fn options() -> RelayOptions {
    RelayOptions { lease: LEASE, ..RelayOptions::default() }
}

#[tokio::test]
async fn a_renewal_that_comes_too_late_moves_no_deadline_with_shards() -> Result<()> {
    let db = database().await?;
    let pool = db.pitwheel().pool_for_loops(2, Duration::from_secs(10))?;
    stops_when_its_lease_is_lost(&db, Shards::new(pool, options())?).await
}

#[tokio::test]
async fn a_renewal_that_comes_too_late_moves_no_deadline_with_entities() -> Result<()> {
    for lock in [EntityLock::Advisory, EntityLock::Row] {
        let db = database().await?;
        let pool = db.pitwheel().pool_for_loops(2, Duration::from_secs(10))?;
        let relay = Entities::new(pool, options(), SourceTable::pitwheel(), lock)?;
        stops_when_its_lease_is_lost(&db, relay).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_claim_that_its_relay_does_not_know_is_freed_also_without_an_error() -> Result<()> {
    for lock in [EntityLock::Advisory, EntityLock::Row] {
        let db = database().await?;
        let pool = db.pitwheel().pool_for_loops(2, Duration::from_secs(10))?;
        let mut relay = Entities::new(pool, options(), SourceTable::pitwheel(), lock)?;
        let events = relay.take(10).await?.events;
        assert_eq!(relay.acknowledge(&events).await?.lost, 0);
        // Postgres has crashed, and the end of a claim was not on disk yet.
        let undone = "insert into pitwheel.outbox_claim (source, entity_key, relay, lease)
            select 'pitwheel.outbox', 'b', relay, gen_random_uuid() from pitwheel.outbox_relay;
            select pitwheel.add_event('b', 'orders', 'changed', 'x')";
        db.client().await?.batch_execute(undone).await?;
        let begun = Instant::now();
        while relay.take(10).await?.events.is_empty() {
            assert!(begun.elapsed() < WAIT_MAX, "{lock:?}: the event is held for ever");
            tokio::time::sleep(LEASE / 50).await; // between two polls
        }
    }
    Ok(())
}

#[tokio::test]
async fn shards_and_claims_of_entities_exclude_each_other() -> Result<()> {
    let db = database().await?;
    let pool = || db.pitwheel().pool_for_loops(2, Duration::from_secs(10));
    let options = || RelayOptions { lease: Duration::from_secs(600), ..RelayOptions::default() };
    let entities = |lock| anyhow::Ok(Entities::new(pool()?, options(), SourceTable::pitwheel(), lock)?);
    let (mut shards, mut more_shards) = (Shards::new(pool()?, options())?, Shards::new(pool()?, options())?);
    let (mut advisory, mut row) = (entities(EntityLock::Advisory)?, entities(EntityLock::Row)?);

    assert_eq!(shards.take(10).await?.events.len(), 1);
    more_shards.take(10).await?;
    let refused = advisory.take(10).await.expect_err("shards are in use").to_string();
    assert!(refused.contains("by `shards`"), "{refused}");

    shards.release().await?;
    // The other one has died: its lease expires.
    db.client()
        .await?
        .batch_execute("update pitwheel.outbox_relay set lease_until = clock_timestamp() - interval '1 s'")
        .await?;
    assert_eq!(advisory.take(10).await?.events.len(), 1);
    row.take(10).await?;
    let refused = shards.take(10).await.expect_err("entities are claimed").to_string();
    assert!(refused.contains("by `advisory` or `row-lock`"), "{refused}");
    Ok(())
}

#[tokio::test]
async fn a_clock_that_steps_back_does_not_keep_a_dead_relay() -> Result<()> {
    let db = database().await?;
    let pool = || db.pitwheel().pool_for_loops(2, Duration::from_secs(10));
    let mut dead = Shards::new(pool()?, options())?;
    assert_eq!(dead.take(10).await?.events.len(), 1);
    // It was registered while the clock was an hour ahead.
    let ahead = "update pitwheel.outbox_relay set lease_until = lease_until + interval '1 hour'";
    db.client().await?.batch_execute(ahead).await?;
    let mut next = Shards::new(pool()?, options())?;
    let begun = Instant::now();
    while next.take(10).await?.events.is_empty() {
        assert!(begun.elapsed() < WAIT_MAX, "its lease is never cut");
        tokio::time::sleep(LEASE / 50).await; // between two polls
    }
    Ok(())
}
