//! A row that another transaction has locked delays its own entity, and nothing else.

use std::time::Duration;

use anyhow::Result;
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
    assert_eq!(event_ids(&take_events(&mut relay).await?), added[1..]);
    assert_eq!(db.count("select count(*) from pitwheel.outbox_parked_event").await?, 2);
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
