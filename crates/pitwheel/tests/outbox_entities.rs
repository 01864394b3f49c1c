//! Relays that claim entities one by one, on the outbox of Pitwheel and on a table of a team's own.

use std::time::Duration;

use anyhow::Result;
use pitwheel::Unpark;
use pitwheel::engine::outbox::{
    Column, Entities, EntityLock, Event, RelayOptions, SourceTable, Strategy, WhenSent,
};
use pitwheel_testkit::{TestDb, event_ids};
use tokio_postgres::Client;

/// Far longer than a test takes: a lease expires only if a test expires it.
const LEASE: Duration = Duration::from_secs(600);

/// A table as a team may have it: with a status, and names that need quotes.
const OWN_TABLE: &str = r#"
    create table "Outbox" ("Id" serial primary key, "entityKey" varchar(80) not null, body jsonb, status text not null default 'NEW');
    create index on "Outbox" ("entityKey", "Id") where status = 'NEW';
    create index on pitwheel.outbox (entity_key, id)"#;

fn own_table() -> SourceTable {
    SourceTable {
        schema: "public".to_owned(),
        table: "Outbox".to_owned(),
        id: "Id".to_owned(),
        entity_key: "entityKey".to_owned(),
        topic: Column::Constant("orders".to_owned()),
        kind: Column::Constant("changed".to_owned()),
        payload: "body".to_owned(),
        payload_is_bytes: false,
        headers: None,
        created_at: None,
        when_sent: WhenSent::Mark {
            column: "status".to_owned(),
            waiting: "NEW".to_owned(),
            sent: "SENT".to_owned(),
        },
    }
}

fn entities(db: &TestDb, name: &str, source: SourceTable, lock: EntityLock) -> Result<Entities> {
    let pool = db.pitwheel().pool_for_loops(2, Duration::from_secs(10))?;
    let options = RelayOptions { name: name.to_owned(), lease: LEASE, ..RelayOptions::default() };
    Ok(Entities::new(pool, options, source, lock)?)
}

const LOCKS: [EntityLock; 2] = [EntityLock::Advisory, EntityLock::Row];

#[tokio::test]
async fn an_entity_is_held_by_one_relay_until_its_events_are_acknowledged() -> Result<()> {
    for (source, lock) in
        [own_table(), SourceTable::pitwheel()].iter().flat_map(|one| LOCKS.map(|lock| (one, lock)))
    {
        let db = TestDb::new().await?;
        let client = db.client().await?;
        client.batch_execute(OWN_TABLE).await?;
        let insert = match &*source.table {
            "Outbox" => {
                r#"insert into "Outbox" ("entityKey", body) values ($1, '{"n": 1}') returning "Id"::bigint"#
            }
            _ => "select pitwheel.add_event($1, 'orders', 'changed', 'x')",
        };
        let mut first = entities(&db, "first", source.clone(), lock)?;
        let mut second = entities(&db, "second", source.clone(), lock)?;
        for key in ["a", "b", "a"] {
            client.query_one(insert, &[&key]).await?;
        }
        let events = first.take(100).await?.events;
        let of_a: Vec<i64> =
            events.iter().filter(|event| event.entity_key == "a").map(|event| event.id).collect();
        assert_eq!((event_ids(&events), of_a), (vec![1, 2, 3], vec![1, 3]));
        assert_eq!(events[0].topic, "orders");
        // The claim outlives its transaction: a later event of the entity is not taken by another relay.
        client.query_one(insert, &[&"a"]).await?;
        client.query_one(insert, &[&"c"]).await?;
        let of_second = second.take(100).await?.events;
        assert_eq!(event_ids(&of_second), [5], "{lock:?}");
        assert_eq!(first.acknowledge(&events).await?.lost, 0);
        assert_eq!(event_ids(&second.take(100).await?.events), [4, 5]);

        // Its lease expires: what it held is free, and what it acknowledges is refused.
        let expire = "update pitwheel.outbox_relay set lease_until = now() - interval '1 second' where name = 'second'";
        client.execute(expire, &[]).await?;
        let mut third = entities(&db, "third", source.clone(), lock)?;
        let again = third.take(100).await?.events;
        assert_eq!(event_ids(&again), [4, 5]);
        assert_eq!(second.acknowledge(&of_second).await?.lost, 1);
        let c = again.iter().find(|event| event.entity_key == "c").cloned();
        assert!(third.park(&c.expect("it was taken"), "refused").await?);
        assert_eq!(event_ids(&third.take(100).await?.events), [4]);
        third.release().await?;
        let mut fourth = entities(&db, "fourth", source.clone(), lock)?;
        assert_eq!(event_ids(&fourth.take(100).await?.events), [4], "the parked one waits");
        db.pitwheel().outbox().unpark_in(&source.name(), &["c"], Unpark::Retry).await?;
        assert_eq!(event_ids(&fourth.take(100).await?.events), [4, 5]);
    }
    Ok(())
}

#[tokio::test]
async fn a_table_without_the_index_or_whose_key_may_be_null_is_refused() -> Result<()> {
    let db = TestDb::new().await?;
    let mut relay = entities(&db, "one", SourceTable::pitwheel(), EntityLock::Row)?;
    let error = relay.take(10).await.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.contains("create index concurrently"), "{error}");
    let mut relay = entities(&db, "one", own_table(), EntityLock::Row)?;
    let error = relay.take(10).await.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.contains("does not exist"), "{error}");
    let client = db.client().await?;
    client.batch_execute(OWN_TABLE).await?;
    client.batch_execute(r#"alter table "Outbox" alter column "entityKey" drop not null"#).await?;
    let error = relay.take(10).await.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.contains("set not null"), "{error}");
    Ok(())
}

/// Two relays on Pitwheel's outbox, and two events of `a`, which the first has taken.
async fn two_relays(db: &TestDb, lock: EntityLock) -> Result<(Entities, Vec<Event>, Entities)> {
    let client = db.client().await?;
    client.batch_execute("create index on pitwheel.outbox (entity_key, id)").await?;
    for _ in 0..2 {
        client.query_one("select pitwheel.add_event('a', 'orders', 'changed', 'x')", &[]).await?;
    }
    let mut first = entities(db, "first", SourceTable::pitwheel(), lock)?;
    let events = first.take(100).await?.events;
    assert_eq!(event_ids(&events), [1, 2]);
    Ok((first, events, entities(db, "second", SourceTable::pitwheel(), lock)?))
}

/// Locks the outbox, so that statements of relays fail.
async fn lock_outbox(db: &TestDb) -> Result<Client> {
    let client = db.client().await?;
    client.batch_execute("begin; lock table pitwheel.outbox in access exclusive mode").await?;
    Ok(client)
}

#[tokio::test]
async fn an_error_while_events_are_on_their_way_frees_none_of_them() -> Result<()> {
    for lock in LOCKS {
        let db = TestDb::new().await?;
        let (mut first, events, mut second) = two_relays(&db, lock).await?;
        let blocker = lock_outbox(&db).await?;
        assert!(first.acknowledge(&events[..1]).await.is_err());
        assert_eq!(first.acknowledge(&[]).await?.lost, 0);
        blocker.batch_execute("rollback").await?;
        assert!(second.take(100).await?.events.is_empty(), "{lock:?}: the first may still send them");
        assert!(first.holds(&events[0]));
        assert_eq!(first.acknowledge(&events).await?.lost, 0, "{lock:?}");
        assert_eq!(db.count("select count(*) from pitwheel.outbox").await?, 0);
    }
    Ok(())
}

#[tokio::test]
async fn a_claim_that_its_relay_does_not_know_is_freed_after_an_error() -> Result<()> {
    for lock in LOCKS {
        let db = TestDb::new().await?;
        let (mut first, events, mut second) = two_relays(&db, lock).await?;
        assert_eq!(first.acknowledge(&events[..1]).await?.lost, 0);
        // A crash undoes the end of a claim, or the answer to its commit is lost.
        let claim = "insert into pitwheel.outbox_claim (source, entity_key, relay, lease)
            select 'pitwheel.outbox', 'b', relay, gen_random_uuid() from pitwheel.outbox_relay where name = 'first';
            select pitwheel.add_event('b', 'orders', 'changed', 'x')";
        db.client().await?.batch_execute(claim).await?;
        assert!(second.take(100).await?.events.is_empty());
        assert_eq!(event_ids(&first.take(100).await?.events), [2]);

        let blocker = lock_outbox(&db).await?;
        assert!(first.take(100).await.is_err());
        blocker.batch_execute("rollback").await?;
        assert_eq!(
            event_ids(&first.take(100).await?.events),
            [2, 3],
            "{lock:?}: what it knows is still its own"
        );
        assert!(second.take(100).await?.events.is_empty());
    }
    Ok(())
}
