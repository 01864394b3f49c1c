//! Events with headers that Postgres stores and our parser refuses.

use std::time::Duration;

use anyhow::Result;
use pitwheel::engine::outbox::{
    Column, Entities, EntityLock, Event, RelayOptions, Shards, SourceTable, Strategy,
};
use pitwheel_relay::{Limit, Outcome, Relay, Sink};
use pitwheel_testkit::{TestDb, wait_until};
use tokio_util::sync::CancellationToken;

/// Takes everything.
struct Greedy;

impl Sink for Greedy {
    async fn send(&mut self, events: &[Event], _: &Limit) -> Vec<Outcome> {
        vec![Outcome::Sent; events.len()]
    }
}

/// A number that is too large, and too many levels.
fn headers() -> [String; 2] {
    ["{\"x\": 1e400}".to_owned(), format!("{{\"x\": {}{}}}", "[".repeat(200), "]".repeat(200))]
}

/// Adds events of three entities, of which the first two have headers that cannot be read.
async fn add(db: &TestDb, insert: &str) -> Result<()> {
    let client = db.client().await?;
    let [number, nested] = headers();
    let events = [
        ("a", None),
        ("a", Some(number)),
        ("a", None),
        ("b", Some(nested)),
        ("c", Some("{\"x\": 1}".to_owned())),
    ];
    for (key, headers) in &events {
        client.execute(insert, &[key, headers]).await?;
    }
    Ok(())
}

/// Runs a relay until the entities `a` and `b` are parked and nothing else waits.
async fn parks_them(db: &TestDb, strategy: impl Strategy + 'static, waiting: &str) -> Result<()> {
    let stop = CancellationToken::new();
    let running = tokio::spawn(Relay::new(strategy, Greedy).run(stop.clone().cancelled_owned()));
    wait_until("two entities are parked", async || {
        anyhow::ensure!(!running.is_finished(), "the relay has ended");
        let parked =
            "select count(*) from pitwheel.outbox_parked where reason like 'its headers cannot be read (%'";
        Ok(db.count(parked).await? == 2 && db.count(waiting).await? == 0)
    })
    .await?;
    stop.cancel();
    let stats = running.await?;
    assert_eq!((stats.sent, stats.parked), (2, 2), "the first of `a`, and that of `c`");
    Ok(())
}

#[tokio::test]
async fn an_event_whose_headers_cannot_be_read_is_parked_with_shards() -> Result<()> {
    let db = TestDb::new().await?;
    add(&db, "select pitwheel.add_event($1, 'orders', 'changed', 'x'::bytea, $2::text::jsonb)").await?;
    let pool = db.pitwheel().pool_for_loops(2, Duration::from_secs(10))?;
    let relay = Shards::new(pool, RelayOptions::default())?;
    parks_them(&db, relay, "select count(*) from pitwheel.outbox").await?;

    let outbox = db.pitwheel().outbox();
    let events: Vec<i64> = outbox.parked(None, 0).await?.iter().map(|parked| parked.event_id).collect();
    assert_eq!(events, [2, 4]);
    assert_eq!(outbox.trace(2).await?[0].state, "parked");
    Ok(())
}

#[tokio::test]
async fn an_event_whose_headers_cannot_be_read_is_parked_in_a_table_of_its_own() -> Result<()> {
    for lock in [EntityLock::Advisory, EntityLock::Row] {
        let db = TestDb::new().await?;
        let table = "create table own (id bigint generated always as identity, entity_key text not null, payload bytea, headers jsonb);
            create index on own (entity_key, id)";
        db.client().await?.batch_execute(table).await?;
        add(&db, "insert into own (entity_key, headers) values ($1, $2::text::jsonb)").await?;
        let pool = db.pitwheel().pool_for_loops(2, Duration::from_secs(10))?;
        let source = SourceTable {
            schema: "public".to_owned(),
            table: "own".to_owned(),
            topic: Column::Constant("orders".to_owned()),
            kind: Column::Constant("changed".to_owned()),
            created_at: None,
            ..SourceTable::pitwheel()
        };
        let relay = Entities::new(pool, RelayOptions::default(), source, lock)?;
        let waiting = "select count(*) from own where entity_key not in (select entity_key from pitwheel.outbox_parked)";
        parks_them(&db, relay, waiting).await?;
    }
    Ok(())
}
