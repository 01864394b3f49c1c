//! A row that another transaction has locked delays its own entity, and nothing else.

use std::time::Duration;

use anyhow::{Context, Result};
use pitwheel::engine::outbox::{Entities, EntityLock, Event, RelayOptions, Shards, SourceTable, Strategy};
use pitwheel_testkit::{TestDb, event_ids, take_events};
use tokio_postgres::Client;

fn options(name: &str) -> RelayOptions {
    // A lease far longer than the test takes.
    RelayOptions { name: name.to_owned(), lease: Duration::from_secs(600), ..RelayOptions::default() }
}

fn shards(db: &TestDb, options: RelayOptions) -> Result<Shards> {
    Ok(Shards::new(db.pitwheel().pool_for_loops(2, Duration::from_secs(10))?, options)?)
}

fn entities(db: &TestDb, lock: EntityLock) -> Result<Entities> {
    let pool = db.pitwheel().pool_for_loops(2, Duration::from_secs(10))?;
    Ok(Entities::new(pool, options("one"), SourceTable::pitwheel(), lock)?)
}

/// A transaction that holds these rows.
async fn lock(db: &TestDb, rows: &str) -> Result<Client> {
    let client = db.client().await?;
    client.batch_execute(&format!("begin; select from {rows} for update")).await?;
    Ok(client)
}

#[tokio::test]
async fn events_are_taken_while_those_of_a_parked_entity_cannot_be_moved() -> Result<()> {
    let db = TestDb::new().await?;
    let mut relay = shards(&db, options("one"))?;
    db.add_events(&["a"]).await?;
    let events = take_events(&mut relay).await?;
    assert!(relay.park(&events[0], "refused").await?);
    let added = db.add_events(&["a", "b"]).await?;
    let blocker = lock(&db, "pitwheel.outbox where entity_key = 'a'").await?;
    assert_eq!(event_ids(&take_events(&mut relay).await?), added[1..]);
    blocker.batch_execute("rollback").await?;
    // After a moment it is tried again.
    while db.count("select count(*) from pitwheel.outbox_parked_event").await? < 2 {
        assert_eq!(event_ids(&take_events(&mut relay).await?), added[1..]);
    }
    Ok(())
}

#[tokio::test]
async fn events_are_taken_while_shards_cannot_be_given_back() -> Result<()> {
    let db = TestDb::new().await?;
    let (mut first, mut second) = (shards(&db, options("first"))?, shards(&db, options("second"))?);
    take_events(&mut first).await?;
    take_events(&mut second).await?;
    let added = db.add_events(&["a", "b"]).await?;
    let blocker = lock(&db, "pitwheel.outbox_shard").await?;
    let begun = take_events(&mut first).await?;
    blocker.batch_execute("rollback").await?;
    assert_eq!(event_ids(&begun), added);
    Ok(())
}

/// Acknowledges three events while the first is locked, then without the lock.
async fn acknowledges_the_others(db: &TestDb, mut relay: impl Strategy) -> Result<()> {
    db.add_events(&["a", "b", "a"]).await?;
    let events = relay.take(1000).await?.events;
    assert_eq!(event_ids(&events), [1, 2, 3]);
    let blocker = lock(db, "pitwheel.outbox where id = 1").await?;
    let of_a: Vec<Event> = events.iter().filter(|event| event.entity_key == "a").cloned().collect();
    for sent in [&events, &of_a] {
        let acknowledged = relay.acknowledge(sent).await?;
        assert_eq!((acknowledged.lost, acknowledged.locked), (0, 2), "what is behind it stays too");
    }
    let waiting = "select count(*) from pitwheel.outbox";
    assert_eq!(db.count(&format!("{waiting} where entity_key = 'a'")).await?, 2);
    assert_eq!(db.count(waiting).await?, 2);
    db.add_events(&["c"]).await?;
    assert_eq!(event_ids(&relay.take(1000).await?.events), [4], "`a` waits a moment before it is sent again");
    blocker.batch_execute("rollback").await?;
    let acknowledged = relay.acknowledge(&of_a).await?;
    assert_eq!((acknowledged.lost, acknowledged.locked), (0, 0));
    assert_eq!(db.count(waiting).await?, 1);
    Ok(())
}

#[tokio::test]
async fn events_beside_a_locked_one_are_acknowledged_with_shards() -> Result<()> {
    for keep in [None, Some(Duration::from_secs(86400))] {
        let db = TestDb::new().await?;
        let relay = shards(&db, RelayOptions { keep, ..options("one") })?;
        acknowledges_the_others(&db, relay).await?;
    }
    Ok(())
}

#[tokio::test]
async fn events_beside_a_locked_one_are_acknowledged_with_entities() -> Result<()> {
    for lock in [EntityLock::Advisory, EntityLock::Row] {
        let db = TestDb::new().await?;
        db.client().await?.batch_execute("create index on pitwheel.outbox (entity_key, id)").await?;
        acknowledges_the_others(&db, entities(&db, lock)?).await?;
    }
    Ok(())
}

/// Keys of entities in one shard.
async fn keys_of_a_shard(db: &TestDb, count: i64) -> Result<Vec<String>> {
    let keys = "select 'key-' || n from generate_series(1, 100000) as n where hashtextextended('key-' || n, 0) & 63 = 5 limit $1";
    let rows = db.client().await?.query(keys, &[&count]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

#[tokio::test]
async fn an_acknowledgement_says_when_more_entities_are_locked_than_can_be_left_out() -> Result<()> {
    let db = TestDb::new().await?;
    let mut relay = shards(&db, options("one"))?;
    let keys = keys_of_a_shard(&db, 101).await?;
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    db.add_events(&keys).await?;
    relay.turn_soon();
    let events = relay.take(100_000).await?.events;
    assert_eq!(events.len(), 101);
    for (locked, must_wait) in [(101, true), (100, false)] {
        let blocker = lock(&db, &format!("pitwheel.outbox where id <= {locked}")).await?;
        let acknowledged = relay.acknowledge(&events).await?;
        assert_eq!((acknowledged.locked, acknowledged.must_wait), (locked, must_wait));
        blocker.batch_execute("rollback").await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_parked_entity_that_cannot_be_moved_leaves_room_for_others() -> Result<()> {
    let db = TestDb::new().await?;
    let mut relay = shards(&db, options("one"))?;
    let keys = keys_of_a_shard(&db, 2).await?;
    let [parked, other] = [&*keys[0], &*keys[1]];
    db.add_events(&[parked]).await?;
    let events = take_events(&mut relay).await?;
    assert!(relay.park(&events[0], "refused").await?);
    db.add_events(&[parked; 200]).await?;
    let added = db.add_events(&[other]).await?;
    let blocker = lock(&db, "pitwheel.outbox_shard").await?;
    // Fewer than the parked entity has.
    let first = relay.take(100).await?.events;
    assert!(first.is_empty(), "{:?}", event_ids(&first));
    assert_eq!(event_ids(&relay.take(100).await?.events), added);
    blocker.batch_execute("rollback").await?;
    let moved = "select count(*) from pitwheel.outbox_parked_event";
    while db.count(moved).await? < 201 {
        relay.take(1000).await?;
    }
    assert_eq!(event_ids(&relay.take(1000).await?.events), added);
    Ok(())
}

/// An event is refused while rows are locked that its parking needs.
async fn is_parked_later(db: &TestDb, mut relay: impl Strategy, needed: &str) -> Result<()> {
    db.add_events(&["a", "b", "a"]).await?;
    let events = relay.take(1000).await?.events;
    assert_eq!(event_ids(&events), [1, 2, 3]);
    let first =
        |events: &[Event]| events.iter().find(|event| event.id == 1).cloned().context("the first event");
    let blocker = lock(db, needed).await?;
    assert!(!relay.park(&first(&events)?, "refused").await?, "not now");
    assert_eq!(event_ids(&relay.take(1000).await?.events), [2], "`a` waits a moment before it is sent again");
    blocker.batch_execute("rollback").await?;
    let mut again = relay.take(1000).await?.events;
    while again.len() < 3 {
        assert_eq!(event_ids(&again), [2]);
        again = relay.take(1000).await?.events;
    }
    assert!(relay.park(&first(&again)?, "refused").await?);
    assert_eq!(db.count("select count(*) from pitwheel.outbox_parked where entity_key = 'a'").await?, 1);
    assert_eq!(event_ids(&relay.take(1000).await?.events), [2]);
    Ok(())
}

#[tokio::test]
async fn an_entity_is_parked_later_if_its_shard_or_its_claim_is_locked() -> Result<()> {
    let db = TestDb::new().await?;
    is_parked_later(&db, shards(&db, options("one"))?, "pitwheel.outbox_shard").await?;
    let db = TestDb::new().await?;
    db.client().await?.batch_execute("create index on pitwheel.outbox (entity_key, id)").await?;
    is_parked_later(&db, entities(&db, EntityLock::Advisory)?, "pitwheel.outbox_claim").await
}

/// Rows of `a` cannot leave the outbox, and say so.
const REFUSE: &str = "
    create function public.refuse() returns trigger language plpgsql as $$
    begin raise exception 'it must stay'; end $$;
    create trigger refuse before delete on pitwheel.outbox for each row when (old.entity_key = 'a') execute function public.refuse()";

/// Acknowledges events of many entities, of which Postgres refuses those of one.
async fn acknowledges_all_but_the_refused(db: &TestDb, mut relay: impl Strategy) -> Result<()> {
    let client = db.client().await?;
    client.batch_execute(REFUSE).await?;
    let keys: Vec<String> = (0..50).map(|n| format!("key-{n}")).collect();
    let mut all: Vec<&str> = keys.iter().map(String::as_str).collect();
    all.splice(20..20, ["a", "a"]);
    db.add_events(&all).await?;
    let events = relay.take(100_000).await?.events;
    assert_eq!(events.len(), 52);
    let acknowledged = relay.acknowledge(&events).await?;
    assert_eq!((acknowledged.lost, acknowledged.locked, acknowledged.refused), (0, 0, 2));
    let waiting = "select count(*) from pitwheel.outbox";
    assert_eq!(db.count(waiting).await?, 2);
    let later = db.add_events(&["b"]).await?;
    let others = relay.take(100_000).await?.events;
    assert_eq!(event_ids(&others), later, "`a` waits before it is sent again");
    assert_eq!(relay.acknowledge(&others).await?.refused, 0);
    client.batch_execute("drop trigger refuse on pitwheel.outbox").await?;
    let of_a: Vec<Event> = events.into_iter().filter(|event| event.entity_key == "a").collect();
    assert_eq!(relay.acknowledge(&of_a).await?.lost, 0);
    assert_eq!(db.count(waiting).await?, 0);
    Ok(())
}

#[tokio::test]
async fn a_row_that_postgres_refuses_to_delete_delays_its_own_entity() -> Result<()> {
    let db = TestDb::new().await?;
    acknowledges_all_but_the_refused(&db, shards(&db, options("one"))?).await?;
    let db = TestDb::new().await?;
    db.client().await?.batch_execute("create index on pitwheel.outbox (entity_key, id)").await?;
    acknowledges_all_but_the_refused(&db, entities(&db, EntityLock::Advisory)?).await
}

/// The claims of a dead relay, of which one is locked.
#[tokio::test]
async fn a_locked_claim_of_a_dead_relay_delays_its_own_entity_only() -> Result<()> {
    for strategy in [EntityLock::Advisory, EntityLock::Row] {
        let db = TestDb::new().await?;
        db.client().await?.batch_execute("create index on pitwheel.outbox (entity_key, id)").await?;
        let added = db.add_events(&["a", "b"]).await?;
        let mut dead = entities(&db, strategy)?;
        assert_eq!(event_ids(&dead.take(1000).await?.events), added);
        let blocker = lock(&db, "pitwheel.outbox_claim where entity_key = 'a'").await?;
        let expired = "update pitwheel.outbox_relay set lease_until = clock_timestamp() - interval '1 s'";
        db.client().await?.batch_execute(expired).await?;

        let mut next = entities(&db, strategy)?;
        assert_eq!(event_ids(&next.take(1000).await?.events), added[1..], "{strategy:?}");
        assert_eq!(db.count("select count(*) from pitwheel.outbox_relay").await?, 1, "one of them is dead");
        blocker.batch_execute("rollback").await?;
        assert_eq!(event_ids(&next.take(1000).await?.events), added, "{strategy:?}");
    }
    Ok(())
}
