//! Keys and payloads that are hard to handle, for every strategy: each is delivered as it is, or refused with a clear message.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use pitwheel::NewEvent;
use pitwheel::engine::outbox::{
    Column, Entities, EntityLock, Event, RelayOptions, Shards, SourceTable, Strategy, WhenSent,
};
use pitwheel_testkit::TestDb;

const LOCKS: [EntityLock; 2] = [EntityLock::Advisory, EntityLock::Row];
const MEGABYTE: usize = 1_000_000;

/// The first two have the smallest hash of the type int4, whose absolute value overflows.
fn keys() -> Vec<String> {
    let short = ["order-7591528555", "order-8238297128", "🦀 naïve", " ", "'\"\\", "{key}", "\u{10ffff}"];
    short.into_iter().map(str::to_owned).chain(["k".repeat(512)]).collect()
}

fn entities(db: &TestDb, source: SourceTable, lock: EntityLock) -> Result<Entities> {
    let pool = db.pitwheel().pool_for_loops(2, Duration::from_secs(10))?;
    Ok(Entities::new(pool, RelayOptions::default(), source, lock)?)
}

/// Takes and acknowledges until nothing is left; returns the payloads of each entity, in the order in which they were taken.
async fn deliver(mut relay: impl Strategy) -> Result<BTreeMap<String, Vec<Vec<u8>>>> {
    let mut delivered: BTreeMap<String, Vec<Vec<u8>>> = BTreeMap::new();
    loop {
        let events: Vec<Event> = relay.take(1000).await?.events;
        if events.is_empty() {
            relay.release().await?;
            return Ok(delivered);
        }
        assert_eq!(relay.acknowledge(&events).await?.lost, 0);
        for event in events {
            delivered.entry(event.entity_key).or_default().push(event.payload.unwrap_or_default());
        }
    }
}

#[tokio::test]
async fn hard_keys_and_payloads_are_delivered_as_they_are() -> Result<()> {
    let db = TestDb::new().await?;
    db.client().await?.batch_execute("create index on pitwheel.outbox (entity_key, id)").await?;
    let payloads = [b"\0\xff".to_vec(), vec![7; MEGABYTE], Vec::new()];
    let expected: BTreeMap<String, Vec<Vec<u8>>> =
        keys().into_iter().map(|key| (key, payloads.to_vec())).collect();
    let add = async || {
        for payload in &payloads {
            let event = |key: &String| NewEvent::new(key, "orders", "💸", payload.clone());
            db.pitwheel().outbox().add(keys().iter().map(event)).await?;
        }
        anyhow::Ok(())
    };
    add().await?;
    let pool = db.pitwheel().pool_for_loops(2, Duration::from_secs(10))?;
    assert!(deliver(Shards::new(pool, RelayOptions::default())?).await? == expected);
    for lock in LOCKS {
        add().await?;
        assert!(deliver(entities(&db, SourceTable::pitwheel(), lock)?).await? == expected, "{lock:?}");
    }
    assert_eq!(db.count("select count(*) from pitwheel.outbox").await?, 0);
    Ok(())
}

#[tokio::test]
async fn a_nul_is_refused_where_text_cannot_hold_it() -> Result<()> {
    let db = TestDb::new().await?;
    for (key, topic, kind, what) in [
        ("a\0b", "orders", "x", "entity key"),
        ("a", "a\0b", "x", "topic"),
        ("a", "orders", "a\0b", "event type"),
    ] {
        let refused =
            db.pitwheel().outbox().add([NewEvent::new(key, topic, kind, "x")]).await.expect_err(what);
        assert_eq!(refused.code(), "invalid");
        assert!(refused.to_string().contains(what), "{refused}");
    }
    let header = NewEvent::new("a", "orders", "x", "x").header("h", "a\0b");
    assert!(db.pitwheel().outbox().add([header]).await.is_err_and(|error| error.to_string().contains("NUL")));
    Ok(())
}

/// A table without the constraints of Pitwheel's.
const OWN_TABLE: &str = "
    create table the_outbox_of_a_team_whose_tables_have_names_as_long_as_allowed (id bigint generated always as identity primary key, entity_key text not null, payload bytea, sent text not null default 'no');
    create index on the_outbox_of_a_team_whose_tables_have_names_as_long_as_allowed (entity_key, id) where sent = 'no';
    create view own as select id, entity_key, payload, sent from the_outbox_of_a_team_whose_tables_have_names_as_long_as_allowed";

fn own_table() -> SourceTable {
    SourceTable {
        schema: "public".to_owned(),
        table: "the_outbox_of_a_team_whose_tables_have_names_as_long_as_allowed".to_owned(),
        topic: Column::Constant("orders".to_owned()),
        kind: Column::Constant("changed".to_owned()),
        headers: None,
        created_at: None,
        when_sent: WhenSent::Mark {
            column: "sent".to_owned(),
            waiting: "no".to_owned(),
            sent: "yes".to_owned(),
        },
        ..SourceTable::pitwheel()
    }
}

#[tokio::test]
async fn a_table_of_a_teams_own_may_have_empty_and_long_keys() -> Result<()> {
    for lock in LOCKS {
        let db = TestDb::new().await?;
        let client = db.client().await?;
        client.batch_execute(OWN_TABLE).await?;
        // Keys that do not compress, so that the index has all of their bytes.
        let long =
            |bytes: usize| -> String { (0..bytes).map(|_| char::from(fastrand::u8(b'!'..=b'~'))).collect() };
        let too_long = long(2680);
        let expected: Vec<String> = keys().into_iter().chain([String::new(), long(2500)]).collect();
        for key in expected.iter().chain([&too_long]) {
            client.execute("insert into own (entity_key, payload) values ($1, '')", &[key]).await?;
        }
        let delivered = deliver(entities(&db, own_table(), lock)?).await?;
        let mut expected: Vec<&String> = expected.iter().collect();
        expected.sort();
        assert!(delivered.keys().eq(expected), "{lock:?}: {:?}", delivered.keys());
        let waiting = client.query("select entity_key from own where sent = 'no'", &[]).await?;
        assert_eq!(waiting.len(), 1, "{lock:?}: the one that is too long, and none waits for it");
    }
    Ok(())
}
