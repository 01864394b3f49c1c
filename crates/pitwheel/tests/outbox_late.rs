//! An event that is committed late keeps its place before the later ones of its entity.

use std::time::Duration;

use anyhow::Result;
use pitwheel::engine::outbox::{Event, RelayOptions, Shards, Strategy};
use pitwheel_testkit::TestDb;

const INSERT: &str = "insert into pitwheel.outbox (entity_key, topic, type) values ($1, 'topic', 'step')";

fn keys(events: &[Event]) -> Vec<&str> {
    events.iter().map(|event| event.entity_key.as_str()).collect()
}

/// Another entity of the shard of `a`.
async fn neighbour(db: &TestDb) -> Result<String> {
    let sql = "select 'n' || n from generate_series(1, 10000) as n
        where hashtextextended('n' || n, 0) & 63 = hashtextextended('a', 0) & 63 limit 1";
    Ok(db.client().await?.query_one(sql, &[]).await?.get(0))
}

#[tokio::test]
async fn the_next_event_of_an_entity_does_not_overtake_one_that_was_committed_late() -> Result<()> {
    let db = TestDb::new().await?;
    let neighbour = neighbour(&db).await?;
    let mut relay = Shards::new(db.pitwheel().pool_for_loops(2, Duration::MAX)?, RelayOptions::default())?;
    assert!(relay.take(10).await?.events.is_empty());
    let mut writer = db.client().await?;
    let late = writer.transaction().await?;
    late.execute(INSERT, &[&"a"]).await?;
    db.client().await?.execute(INSERT, &[&neighbour]).await?;
    let between = relay.take(10).await?.events;
    assert_eq!(keys(&between), [&neighbour]);
    assert_eq!(relay.acknowledge(&between).await?.lost, 0);

    late.commit().await?;
    writer.execute(INSERT, &[&"a"]).await?;

    let events = relay.take(10).await?.events;
    assert_eq!(keys(&events), ["a", "a"]);
    assert!(events[0].id < between[0].id && between[0].id < events[1].id, "the late one is the first");
    Ok(())
}
