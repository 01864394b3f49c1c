//! Floors after a failover to a standby that was behind: what they say of the old primary hides no event of the new one.

use std::time::Duration;

use anyhow::Result;
use pitwheel::engine::outbox::{RelayOptions, Shards, Strategy};
use pitwheel_testkit::{TestDb, event_ids, take_events};

const HIGHEST: &str = "select max(floor) from pitwheel.outbox_shard";

fn relay(db: &TestDb, name: &str) -> Result<Shards> {
    let pool = db.pitwheel().pool_for_loops(2, Duration::from_secs(10))?;
    // Far longer than the test takes.
    let lease = Duration::from_secs(600);
    Ok(Shards::new(pool, RelayOptions { name: name.to_owned(), lease, ..RelayOptions::default() })?)
}

/// A relay that has delivered events of every shard, and whose floors are above them.
async fn with_floors(db: &TestDb) -> Result<Shards> {
    let mut relay = relay(db, "first")?;
    let keys: Vec<String> = (0..1000).map(|n| format!("k{n}")).collect();
    db.add_events(&keys.iter().map(String::as_str).collect::<Vec<_>>()).await?;
    loop {
        let events = take_events(&mut relay).await?;
        if events.is_empty() {
            break;
        }
        assert_eq!(relay.acknowledge(&events).await?.lost, 0);
    }
    assert_eq!(db.count(HIGHEST).await?, 0, "they are saved once a minute");
    Ok(relay)
}

/// The database is another one now, which has drawn no id yet.
async fn go_back(db: &TestDb) -> Result<()> {
    db.client().await?.batch_execute("alter sequence pitwheel.outbox_id_seq restart").await?;
    Ok(())
}

#[tokio::test]
async fn a_relay_that_stops_after_an_error_leaves_no_floor() -> Result<()> {
    let db = TestDb::new().await?;
    let mut first = with_floors(&db).await?;
    let blocker = db.client().await?;
    blocker.batch_execute("begin; lock table pitwheel.outbox in access exclusive mode").await?;
    assert!(first.take(10).await.is_err());
    blocker.batch_execute("rollback").await?;
    go_back(&db).await?;
    let added = db.add_events(&["a", "b"]).await?;
    first.release().await?;
    assert_eq!(db.count(HIGHEST).await?, 0);
    assert_eq!(event_ids(&take_events(&mut relay(&db, "second")?).await?), added);
    Ok(())
}

#[tokio::test]
async fn a_relay_that_stops_without_having_seen_an_error_leaves_no_floor() -> Result<()> {
    let db = TestDb::new().await?;
    let mut first = with_floors(&db).await?;
    go_back(&db).await?;
    let added = db.add_events(&["a", "b"]).await?;
    first.release().await?;
    assert_eq!(db.count(HIGHEST).await?, 0);
    assert_eq!(event_ids(&take_events(&mut relay(&db, "second")?).await?), added);
    Ok(())
}

#[tokio::test]
async fn shards_that_are_shared_with_a_new_relay_keep_no_floor() -> Result<()> {
    let db = TestDb::new().await?;
    let (mut first, mut second) = (with_floors(&db).await?, relay(&db, "second")?);
    take_events(&mut second).await?;
    go_back(&db).await?;
    let added = db.add_events(&["a", "b"]).await?;
    let mut taken = event_ids(&take_events(&mut first).await?);
    assert_eq!(db.count(HIGHEST).await?, 0);
    for _ in 0..2 {
        taken = event_ids(&take_events(&mut first).await?);
        taken.extend(event_ids(&take_events(&mut second).await?));
    }
    taken.sort_unstable();
    assert_eq!(taken, added);
    Ok(())
}

#[tokio::test]
async fn a_saved_floor_above_the_last_id_is_reset() -> Result<()> {
    let db = TestDb::new().await?;
    // As it is after `truncate … restart identity`, too.
    db.client().await?.batch_execute("update pitwheel.outbox_shard set floor = 1000").await?;
    let added = db.add_events(&["a", "b"]).await?;
    let mut relay = relay(&db, "one")?;
    take_events(&mut relay).await?;
    assert_eq!(event_ids(&take_events(&mut relay).await?), added);
    assert_eq!(db.count(HIGHEST).await?, 0);
    Ok(())
}
