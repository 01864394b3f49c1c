//! The outbox with shards: every event is delivered, in the order of its entity, and by one relay at a time.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Result, ensure};
use pitwheel::NewEvent;
use pitwheel::engine::outbox::{Event, RelayOptions, Shards, Strategy};
use pitwheel_testkit::{TestDb, event_ids, take_events};

/// Far longer than a test takes: a lease expires only if a test expires it.
const LEASE: Duration = Duration::from_secs(600);

fn options(name: &str) -> RelayOptions {
    RelayOptions { name: name.to_owned(), lease: LEASE, ..RelayOptions::default() }
}

fn relay_with(db: &TestDb, options: RelayOptions) -> Result<Shards> {
    let pool = db.pitwheel().pool_for_loops(2, Duration::from_secs(10))?;
    Ok(Shards::new(pool, options)?)
}

fn relay(db: &TestDb, name: &str) -> Result<Shards> {
    relay_with(db, options(name))
}

fn event(key: &str, n: usize) -> NewEvent {
    NewEvent::new(key, "orders", "order.changed", n.to_string())
}

async fn add(db: &TestDb, keys: &[&str]) -> Result<Vec<i64>> {
    Ok(db.pitwheel().outbox().add(keys.iter().enumerate().map(|(n, key)| event(key, n))).await?)
}

async fn waiting(db: &TestDb) -> Result<i64> {
    db.count("select count(*) from pitwheel.outbox").await
}

async fn expire(db: &TestDb, name: &str) -> Result<()> {
    let sql = "update pitwheel.outbox_relay set lease_until = clock_timestamp() - interval '1 second' where name = $1";
    ensure!(db.client().await?.execute(sql, &[&name]).await? == 1, "no such relay");
    Ok(())
}

#[tokio::test]
async fn events_come_in_the_order_of_their_entity_and_are_gone_when_acknowledged() -> Result<()> {
    let db = TestDb::new().await?;
    let added = add(&db, &["a", "b", "a", "c", "a", "b"]).await?;
    let mut relay = relay(&db, "one")?;
    let events = take_events(&mut relay).await?;
    assert_eq!(event_ids(&events), added);
    for key in ["a", "b", "c"] {
        let of_key: Vec<i64> =
            events.iter().filter(|event| event.entity_key == key).map(|event| event.id).collect();
        assert!(of_key.is_sorted(), "{key}: {of_key:?}");
    }
    assert_eq!(event_ids(&take_events(&mut relay).await?), added, "what is not acknowledged is taken again");
    let (first, rest): (Vec<Event>, Vec<Event>) =
        events.into_iter().partition(|event| event.entity_key == "a");
    assert_eq!(relay.acknowledge(&first).await?.lost, 0);
    assert_eq!(event_ids(&take_events(&mut relay).await?), event_ids(&rest));
    assert_eq!(relay.acknowledge(&rest).await?.lost, 0);
    assert_eq!(waiting(&db).await?, 0);
    assert!(take_events(&mut relay).await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn a_batch_has_all_shards_in_it_and_a_busy_one_gets_what_others_leave() -> Result<()> {
    let db = TestDb::new().await?;
    let keys: Vec<String> =
        (0..500).map(|n| if n < 400 { "hot".to_owned() } else { format!("k{n}") }).collect();
    db.pitwheel().outbox().add(keys.iter().enumerate().map(|(n, key)| event(key, n))).await?;
    let mut relay = relay(&db, "one")?;
    let first = relay.take(128).await?.events;
    assert!(first.iter().filter(|event| event.entity_key == "hot").count() <= 2);
    assert!(first.iter().filter(|event| event.entity_key != "hot").count() > 40);
    let mut events = first;
    for _ in 0..4 {
        assert_eq!(relay.acknowledge(&events).await?.lost, 0);
        events = relay.take(128).await?.events;
    }
    assert!(events.iter().filter(|event| event.entity_key == "hot").count() > 60, "the others are done");
    Ok(())
}

#[tokio::test]
async fn two_relays_share_the_shards_and_no_event_is_taken_by_both() -> Result<()> {
    let db = TestDb::new().await?;
    let (mut first, mut second) = (relay(&db, "first")?, relay(&db, "second")?);
    assert!(take_events(&mut first).await?.is_empty());
    assert_eq!(first.held().len(), 64);
    take_events(&mut second).await?;
    assert_eq!(second.held().len(), 0, "nothing is taken away");
    take_events(&mut first).await?;
    take_events(&mut second).await?;
    assert_eq!((first.held().len(), second.held().len()), (32, 32));

    let keys: Vec<String> = (0..200).map(|n| format!("k{n}")).collect();
    let added = add(&db, &keys.iter().map(String::as_str).collect::<Vec<_>>()).await?;
    let (of_first, of_second) = (take_events(&mut first).await?, take_events(&mut second).await?);
    let both: HashSet<i64> = event_ids(&of_first).into_iter().chain(event_ids(&of_second)).collect();
    assert_eq!((both.len(), of_first.len() + of_second.len()), (added.len(), added.len()));

    second.release().await?;
    assert!(!second.holds(&of_second[0]));
    take_events(&mut first).await?;
    assert_eq!(first.held().len(), 64, "a clean stop frees them at once");
    assert_eq!(event_ids(&take_events(&mut first).await?), added);
    Ok(())
}

#[tokio::test]
async fn a_relay_holds_the_shards_that_it_was_told_to() -> Result<()> {
    let db = TestDb::new().await?;
    let (mut all, mut told) = (
        relay(&db, "all")?,
        relay_with(&db, RelayOptions { shards: Some((0..10).collect()), ..options("told") })?,
    );
    take_events(&mut all).await?;
    take_events(&mut told).await?;
    take_events(&mut all).await?;
    take_events(&mut told).await?;
    assert_eq!(told.held(), (0..10).collect::<Vec<i16>>());
    assert_eq!(all.held(), (10..64).collect::<Vec<i16>>());
    assert!(relay_with(&db, RelayOptions { shards: Some(vec![64]), ..options("wrong") }).is_err());
    Ok(())
}

#[tokio::test]
async fn a_relay_whose_lease_expired_is_taken_over_and_can_change_nothing() -> Result<()> {
    let db = TestDb::new().await?;
    let added = add(&db, &["a", "a"]).await?;
    let (mut dead, mut next) = (relay(&db, "dead")?, relay(&db, "next")?);
    let events = take_events(&mut dead).await?;
    assert_eq!(event_ids(&events), added);
    take_events(&mut next).await?;
    assert!(next.held().is_empty());

    expire(&db, "dead").await?;
    let again = take_events(&mut next).await?;
    assert_eq!(event_ids(&again), added, "in order, from the first that was not acknowledged");
    assert_eq!(dead.acknowledge(&events[..1]).await?.lost, 1);
    assert!(!dead.holds(&events[0]));
    assert!(!dead.park(&events[0], "refused").await?);
    assert_eq!(waiting(&db).await?, 2);
    assert_eq!(next.acknowledge(&again).await?.lost, 0);
    assert_eq!(waiting(&db).await?, 0);
    Ok(())
}

#[tokio::test]
async fn an_event_that_is_committed_late_is_found() -> Result<()> {
    let db = TestDb::new().await?;
    let mut relay = relay(&db, "one")?;
    take_events(&mut relay).await?;
    let slow = db.client().await?;
    slow.batch_execute("begin; select pitwheel.add_event('a', 'orders', 'first', 'x')").await?;
    for n in 0..3 {
        // Short transactions come and go meanwhile.
        let added = add(&db, &["a", "b"]).await?;
        let events = take_events(&mut relay).await?;
        assert_eq!(event_ids(&events), added, "round {n}");
        assert_eq!(relay.acknowledge(&events).await?.lost, 0);
    }
    slow.batch_execute("commit").await?;
    let late = take_events(&mut relay).await?;
    assert_eq!(late.iter().map(|event| &*event.kind).collect::<Vec<_>>(), ["first"]);
    assert_eq!(relay.acknowledge(&late).await?.lost, 0);
    assert_eq!(waiting(&db).await?, 0);
    Ok(())
}

/// After an outage of the sink, reads may be smaller than those before: the relay holds more shards, or events are larger.
#[tokio::test]
async fn events_that_were_taken_and_not_sent_are_taken_again_after_smaller_reads() -> Result<()> {
    let db = TestDb::new().await?;
    let mut relay = relay(&db, "one")?;
    take_events(&mut relay).await?;
    let added = add(&db, &["a"; 10]).await?;
    for _ in 0..2 {
        assert_eq!(event_ids(&take_events(&mut relay).await?), added, "the sink did not take them");
    }
    let first = relay.take(1).await?.events;
    assert_eq!(event_ids(&first), added[..1]);
    assert_eq!(relay.acknowledge(&first).await?.lost, 0);
    for _ in 0..2 {
        assert_eq!(event_ids(&take_events(&mut relay).await?), added[1..]);
    }
    Ok(())
}

#[tokio::test]
async fn the_next_holder_begins_at_the_saved_floor() -> Result<()> {
    let db = TestDb::new().await?;
    let mut first = relay(&db, "first")?;
    add(&db, &["a", "b", "a"]).await?;
    let events = take_events(&mut first).await?;
    assert_eq!(first.acknowledge(&events).await?.lost, 0);
    take_events(&mut first).await?;
    first.release().await?;
    let floor = "select max(floor) from pitwheel.outbox_shard";
    assert_eq!(db.count(floor).await?, 3);
    let added = add(&db, &["a", "b"]).await?;
    assert_eq!(event_ids(&take_events(&mut relay(&db, "second")?).await?), added);
    Ok(())
}

#[tokio::test]
async fn rows_that_a_rewrite_of_the_table_has_moved_are_still_acknowledged() -> Result<()> {
    let db = TestDb::new().await?;
    add(&db, &["a", "b", "c"]).await?;
    let mut relay = relay(&db, "one")?;
    let events = take_events(&mut relay).await?;
    let (first, rest): (Vec<Event>, Vec<Event>) =
        events.into_iter().partition(|event| event.entity_key == "a");
    assert_eq!(relay.acknowledge(&first).await?.lost, 0);
    db.client().await?.batch_execute("vacuum full pitwheel.outbox").await?;
    assert_eq!(relay.acknowledge(&rest).await?.lost, 0);
    assert_eq!(waiting(&db).await?, 0);
    Ok(())
}

#[tokio::test]
async fn large_payloads_are_read_a_few_at_a_time() -> Result<()> {
    let db = TestDb::new().await?;
    let large = |n: u8| NewEvent::new("a", "orders", "large", vec![n; 1_000_000]);
    db.pitwheel().outbox().add((0..80).map(large)).await?;
    let mut relay = relay_with(&db, RelayOptions { shards: None, ..options("one") })?;
    let events = take_events(&mut relay).await?;
    assert_eq!(events.len(), 1, "64 shards share 32 MiB");
    assert_eq!(events[0].payload.as_ref().map(Vec::len), Some(1_000_000));
    Ok(())
}

#[tokio::test]
async fn a_relay_goes_on_after_its_connections_broke() -> Result<()> {
    let db = TestDb::new().await?;
    let added = add(&db, &["a", "b"]).await?;
    let mut relay = relay(&db, "one")?;
    let events = take_events(&mut relay).await?;
    let kill = "select pg_terminate_backend(pid) from pg_stat_activity
        where datname = current_database() and pid <> pg_backend_pid() and application_name = 'pitwheel'";
    db.client().await?.batch_execute(kill).await?;
    // Each of its connections fails once.
    let mut again = relay.take(100).await;
    for _ in 0..5 {
        if again.is_err() {
            again = relay.take(100).await;
        }
    }
    let again = again?.events;
    assert_eq!(event_ids(&again), added);
    assert_eq!(relay.acknowledge(&events).await?.lost, 0, "the leases are the same");
    assert_eq!(waiting(&db).await?, 0);
    Ok(())
}
