//! Events are added by the library, by SQL functions and by plain inserts: each is stored as it is, or refused with a clear message.
#![cfg(all(feature = "sqlx", feature = "tokio-postgres"))]

use std::time::Duration;

use anyhow::{Context, Result};
use pitwheel::engine::outbox::{Event, RelayOptions, Shards, Strategy};
use pitwheel::{NewEvent, TraceContext, transaction};
use pitwheel_testkit::{TestDb, wait_until};
use sqlx::Connection;

async fn take(db: &TestDb) -> Result<Vec<Event>> {
    let pool = db.pitwheel().pool_for_loops(2, Duration::from_secs(10))?;
    let mut relay = Shards::new(pool, RelayOptions::default())?;
    let events = relay.take(1000).await?.events;
    relay.release().await?;
    Ok(events)
}

#[tokio::test]
async fn what_goes_in_comes_out() -> Result<()> {
    let db = TestDb::new().await?;
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let trace = TraceContext::new(parent, None).context("well formed")?;
    // The first two have the smallest hash of the type int4.
    let keys = ["order-7591528555", "order-8238297128", "🦀 naïve", " ", "'\"\\", &"k".repeat(512)];
    let events = keys.iter().map(|key| NewEvent::new(*key, "orders", "💸", b"\0\xff".to_vec()).trace(&trace));
    db.pitwheel().outbox().add(events.chain([NewEvent::tombstone("gone", "orders", "deleted")])).await?;
    let taken = take(&db).await?;
    assert_eq!(taken.len(), keys.len() + 1);
    for event in taken {
        if event.entity_key == "gone" {
            assert_eq!((event.payload, event.headers), (None, None));
            continue;
        }
        assert!(keys.contains(&&*event.entity_key), "{}", event.entity_key);
        assert_eq!((&*event.kind, event.payload.as_deref()), ("💸", Some(&b"\0\xff"[..])));
        let headers = event.headers.context("it has headers")?;
        assert_eq!(headers["traceparent"], parent);
    }
    Ok(())
}

#[tokio::test]
async fn events_commit_with_the_users_rows_or_not_at_all() -> Result<()> {
    let db = TestDb::new().await?;
    let mut client = db.client().await?;
    client.batch_execute("create table orders (id text primary key)").await?;
    let event = |key: &str| NewEvent::json(key, "orders", "created", &serde_json::json!({"id": key}));
    for commit in [false, true] {
        let tx = client.transaction().await?;
        tx.execute("insert into orders values ('t')", &[]).await?;
        transaction::tokio_postgres::lock_entities(&tx, &["t"]).await?;
        transaction::tokio_postgres::add_events(&tx, [event("t"), event("t")]).await?;
        if commit { tx.commit().await? } else { tx.rollback().await? }
    }
    let mut connection = sqlx::PgConnection::connect(db.url()).await?;
    for commit in [false, true] {
        let mut tx = connection.begin().await?;
        sqlx::query("insert into orders values ('s')").execute(&mut *tx).await?;
        transaction::sqlx::lock_entities(&mut tx, &["s", "r"]).await?;
        let ids =
            transaction::sqlx::add_events(&mut tx, [event("s"), NewEvent::tombstone("s", "orders", "x")])
                .await?;
        assert!(ids.is_sorted() && ids.len() == 2);
        if commit { tx.commit().await? } else { tx.rollback().await? }
    }
    let sql = "begin; select pitwheel.add_event('p', 'orders', 'created', '{\"a\": 1}'::jsonb, '{\"h\": \"v\"}', ordered => true);
        insert into pitwheel.outbox (entity_key, topic, type, payload) values ('i', 'orders', 'created', 'x'); commit";
    client.batch_execute(sql).await?;
    let mut keys: Vec<String> = take(&db).await?.into_iter().map(|event| event.entity_key).collect();
    keys.sort();
    assert_eq!(keys, ["i", "p", "s", "s", "t", "t"]);
    Ok(())
}

/// Key, topic, type, payload, a header, and the column that is refused.
type Case<'a> = (&'a str, &'a str, &'a str, &'a str, Option<&'a str>, &'a str);

#[tokio::test]
async fn what_cannot_be_delivered_is_refused_by_every_way_in() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    let large = "x".repeat(1_000_001);
    let header = "h".repeat(40_000);
    let key = "k".repeat(513);
    let cases: [Case<'_>; 7] = [
        ("", "orders", "created", "x", None, "entity_key"),
        (&key, "orders", "created", "x", None, "entity_key"),
        ("k", "", "created", "x", None, "topic"),
        ("k", "a b", "created", "x", None, "topic"),
        ("k", "orders", "", "x", None, "type"),
        ("k", "orders", "created", &large, None, "payload"),
        ("k", "orders", "created", "x", Some(&header), "headers"),
    ];
    for (key, topic, kind, payload, header, what) in cases {
        let mut event = NewEvent::new(key, topic, kind, payload);
        if let Some(header) = header {
            event = event.header("h", header);
        }
        let words = what.replace('_', " ");
        let refused = db.pitwheel().outbox().add([event]).await.expect_err(what);
        assert_eq!(refused.code(), "invalid");
        assert!(refused.to_string().contains(&words), "{refused}");

        let headers = header.map(|header| serde_json::json!({"h": header}));
        let params: [&(dyn tokio_postgres::types::ToSql + Sync); 5] =
            [&key, &topic, &kind, &payload, &headers];
        let sql = "select pitwheel.add_event($1, $2, $3, $4::text, $5::jsonb)";
        let refused = client.query(sql, &params).await.expect_err(what);
        let message = refused.as_db_error().context("the server refused it")?.message();
        assert!(message.contains(&words), "{message}");

        let sql = "insert into pitwheel.outbox (entity_key, topic, type, payload, headers)
            values ($1, $2, $3, convert_to($4::text, 'UTF8'), $5)";
        let refused = client.query(sql, &params).await.expect_err(what);
        let constraint = refused.as_db_error().and_then(|error| error.constraint()).unwrap_or_default();
        assert!(constraint.contains(what), "{constraint}");
    }
    assert!(client.query("select pitwheel.add_event('k', 'orders', 'x', 'x', '[1]')", &[]).await.is_err());
    assert_eq!(db.count("select count(*) from pitwheel.outbox").await?, 0);
    Ok(())
}

#[tokio::test]
async fn the_order_guard_lets_ids_follow_commits() -> Result<()> {
    let db = TestDb::new().await?;
    let (first, second) = (db.client().await?, db.client().await?);
    first.batch_execute("begin; select pitwheel.lock_entity('a')").await?;
    let waits = tokio::spawn(async move {
        second
            .query_one("select pitwheel.add_event('a', 'orders', 'second', 'x', ordered => true)", &[])
            .await
    });
    wait_until("the second waits", async || Ok(db.lock_waits().await? == 1)).await?;
    first
        .batch_execute("select pitwheel.add_event('a', 'orders', 'first', 'x', ordered => true); commit")
        .await?;
    waits.await??;
    let kinds: Vec<String> = take(&db).await?.into_iter().map(|event| event.kind).collect();
    assert_eq!(kinds, ["first", "second"]);
    Ok(())
}
