//! Tables of a team's own that are built otherwise than Pitwheel's: each event is delivered, and none is lost.

use std::time::Duration;

use anyhow::Result;
use pitwheel::engine::outbox::{
    Column, Entities, EntityLock, Event, RelayOptions, SourceTable, Strategy, WhenSent,
};
use pitwheel_testkit::TestDb;

const LOCKS: [EntityLock; 2] = [EntityLock::Advisory, EntityLock::Row];

fn own_table(when_sent: WhenSent) -> SourceTable {
    SourceTable {
        schema: "public".to_owned(),
        table: "own".to_owned(),
        topic: Column::Constant("orders".to_owned()),
        kind: Column::Constant("changed".to_owned()),
        headers: None,
        when_sent,
        ..SourceTable::pitwheel()
    }
}

fn mark() -> WhenSent {
    WhenSent::Mark { column: "sent".to_owned(), waiting: "no".to_owned(), sent: "yes".to_owned() }
}

fn entities(db: &TestDb, source: SourceTable, lock: EntityLock) -> Result<Entities> {
    let pool = db.pitwheel().pool_for_loops(2, Duration::from_secs(10))?;
    Ok(Entities::new(pool, RelayOptions::default(), source, lock)?)
}

fn ids(events: &[Event]) -> Vec<i64> {
    let mut ids: Vec<i64> = events.iter().map(|event| event.id).collect();
    ids.sort_unstable();
    ids
}

/// The rows of two partitions have the same ctids.
const PARTITIONED: &str = "
    create table own (id bigint generated always as identity, entity_key text not null, payload bytea, created_at timestamptz default now(),
        sent text not null default 'no', primary key (entity_key, id)) partition by list (entity_key);
    create table own_a partition of own for values in ('a');
    create table own_b partition of own for values in ('b');
    insert into own (entity_key) values ('a'), ('b')";

#[tokio::test]
async fn an_acknowledgement_leaves_the_events_of_other_partitions() -> Result<()> {
    for (when_sent, lock) in [WhenSent::Delete, mark()].iter().flat_map(|way| LOCKS.map(|lock| (way, lock))) {
        let db = TestDb::new().await?;
        db.client().await?.batch_execute(PARTITIONED).await?;
        let mut relay = entities(&db, own_table(when_sent.clone()), lock)?;
        let events = relay.take(10).await?.events;
        assert_eq!(ids(&events), [1, 2]);
        assert_eq!(relay.acknowledge(&events[..1]).await?.lost, 0);
        assert_eq!(ids(&relay.take(10).await?.events), [2], "{when_sent:?}, {lock:?}");
        assert_eq!(relay.acknowledge(&events[1..]).await?.lost, 0);
        assert_eq!(db.count("select count(*) from own where sent = 'no'").await?, 0);
    }
    Ok(())
}
