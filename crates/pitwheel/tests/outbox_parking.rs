//! Parked entities wait for an operator, and others do not wait for them. Delivered events that are kept can be sent again.

use std::time::{Duration, SystemTime};

use anyhow::Result;
use pitwheel::engine::outbox::{Event, RelayOptions, Shards, Strategy};
use pitwheel::{NewEvent, Replay, Unpark};
use pitwheel_testkit::{TestDb, event_ids, take_events, wait_until};

const LEASE: Duration = Duration::from_secs(600);
const DAY: Duration = Duration::from_secs(86400);

fn shards(db: &TestDb, keep: Option<Duration>) -> Result<Shards> {
    let pool = db.pitwheel().pool_for_loops(2, Duration::from_secs(10))?;
    Ok(Shards::new(pool, RelayOptions { lease: LEASE, keep, ..RelayOptions::default() })?)
}

async fn add(db: &TestDb, keys: &[&str]) -> Result<Vec<i64>> {
    let event =
        |key: &&str| NewEvent::json(*key, "orders", "order.changed", &serde_json::json!({"key": key}));
    Ok(db.pitwheel().outbox().add(keys.iter().map(event)).await?)
}

/// Takes and acknowledges everything; returns the ids.
async fn deliver(relay: &mut Shards) -> Result<Vec<i64>> {
    let events = take_events(relay).await?;
    assert_eq!(relay.acknowledge(&events).await?.lost, 0);
    Ok(event_ids(&events))
}

/// Three events of `a` and one of `b`; `a` is parked at its second event.
async fn park_second(db: &TestDb, relay: &mut Shards) -> Result<Vec<i64>> {
    let added = add(db, &["a", "b", "a", "a"]).await?;
    let events = take_events(relay).await?;
    let (first, rest): (Vec<Event>, Vec<Event>) =
        events.into_iter().partition(|event| event.id == added[0] || event.entity_key == "b");
    assert_eq!(relay.acknowledge(&first).await?.lost, 0);
    assert!(relay.park(&rest[0], "too large: 2 MB").await?);
    Ok(added)
}

#[tokio::test]
async fn a_parked_entity_waits_and_others_flow() -> Result<()> {
    let db = TestDb::new().await?;
    let mut relay = shards(&db, None)?;
    let added = park_second(&db, &mut relay).await?;
    let later = add(&db, &["a", "b"]).await?;
    assert_eq!(deliver(&mut relay).await?, [later[1]], "a later event of the entity joins it");

    let outbox = db.pitwheel().outbox();
    let parked = outbox.parked(None, 0).await?;
    assert_eq!(parked.len(), 1);
    assert_eq!((&*parked[0].entity_key, parked[0].event_id, parked[0].events), ("a", added[2], 3));
    assert_eq!(parked[0].reason, "too large: 2 MB");
    assert_eq!(outbox.trace(later[0]).await?[0].state, "parked");
    assert_eq!(outbox.trace(later[0]).await?[0].reason.as_deref(), Some("too large: 2 MB"));
    let status = outbox.status().await?;
    assert_eq!((status.waiting, status.parked, status.relays.len()), (0, 1, 1));
    assert!(status.shards.iter().all(|shard| shard.relay.as_deref() == Some("relay")));

    // A relay that comes later knows it too.
    relay.release().await?;
    let mut next = shards(&db, None)?;
    let more = add(&db, &["a", "b"]).await?;
    assert_eq!(deliver(&mut next).await?, [more[1]]);

    assert_eq!(outbox.unpark(&["a", "nothing"], Unpark::Retry).await?, [("a".to_owned(), 4)]);
    assert_eq!(deliver(&mut next).await?, [added[2], added[3], later[0], more[0]]);
    assert!(outbox.parked(None, 0).await?.is_empty());
    let audit = db.pitwheel().audit(None, 10).await?;
    assert_eq!((&*audit[0].action, audit[0].subject.as_deref()), ("outbox.retry", Some("a")));
    Ok(())
}

#[tokio::test]
async fn an_operator_skips_the_refused_event_or_drops_all() -> Result<()> {
    let db = TestDb::new().await?;
    let mut relay = shards(&db, None)?;
    let outbox = db.pitwheel().outbox();
    let added = park_second(&db, &mut relay).await?;
    assert_eq!(outbox.unpark(&["a"], Unpark::Skip).await?, [("a".to_owned(), 1)]);
    assert_eq!(deliver(&mut relay).await?, [added[3]]);

    park_second(&db, &mut relay).await?;
    assert_eq!(outbox.unpark(&["a"], Unpark::Drop).await?, [("a".to_owned(), 0)]);
    assert!(deliver(&mut relay).await?.is_empty());
    let later = add(&db, &["a"]).await?;
    assert_eq!(deliver(&mut relay).await?, later, "it is not parked any more");
    Ok(())
}

#[tokio::test]
async fn events_that_are_put_back_come_before_later_ones_of_their_entity() -> Result<()> {
    let db = TestDb::new().await?;
    let mut relay = shards(&db, None)?;
    let added = park_second(&db, &mut relay).await?;
    db.pitwheel().outbox().unpark(&["a"], Unpark::Retry).await?;
    let later = add(&db, &["a"]).await?;
    // Without a turn in between, the relay does not know yet: it must not read past what was put back.
    let events = relay.take(100).await?.events;
    assert!(events.iter().all(|event| event.entity_key != "a"), "{:?}", event_ids(&events));
    assert_eq!(deliver(&mut relay).await?, [added[2], added[3], later[0]]);
    Ok(())
}

#[tokio::test]
async fn delivered_events_that_are_kept_can_be_sent_again() -> Result<()> {
    let db = TestDb::new().await?;
    let mut relay = shards(&db, Some(7 * DAY))?;
    let outbox = db.pitwheel().outbox();
    let added = add(&db, &["a", "b", "a"]).await?;
    assert_eq!(deliver(&mut relay).await?, added);
    assert_eq!(outbox.trace(added[0]).await?[0].state, "sent");
    assert!(outbox.replay(&Replay::default()).await.is_err(), "it must say what");

    assert_eq!(outbox.replay(&Replay { first_id: Some(added[1]), ..Replay::default() }).await?, 2);
    assert_eq!(outbox.trace(added[1]).await?[0].state, "waiting");
    assert_eq!(deliver(&mut relay).await?, added[1..]);
    let of_a = Replay { entity_key: Some("a".to_owned()), ..Replay::default() };
    assert_eq!(outbox.replay(&of_a).await?, 2);
    assert_eq!(deliver(&mut relay).await?, [added[0], added[2]]);
    let since = |ago: Duration| Replay { since: Some(SystemTime::now() - ago), ..Replay::default() };
    assert_eq!(outbox.replay(&since(Duration::from_secs(3600))).await?, 3);
    assert_eq!(deliver(&mut relay).await?, added);
    let tomorrow = Replay { since: Some(SystemTime::now() + DAY), ..Replay::default() };
    assert_eq!(outbox.replay(&tomorrow).await?, 0);
    assert_eq!(db.count("select count(*) from pitwheel.outbox_sent").await?, 3);
    Ok(())
}

/// Parks `a` with so many events, as a relay does that has moved them aside, and reads past them.
async fn park_many(db: &TestDb, relay: &mut Shards, events: i64) -> Result<()> {
    add(db, &["a"]).await?;
    let taken = take_events(relay).await?;
    assert!(relay.park(&taken[0], "refused").await?);
    let moved = "insert into pitwheel.outbox_parked_event (entity_key, id, created_at, topic, type)
        select 'a', nextval('pitwheel.outbox_id_seq'), now(), 'orders', 'changed' from generate_series(2, $1::bigint)";
    db.client().await?.execute(moved, &[&events]).await?;
    Ok(())
}

#[tokio::test]
async fn more_events_than_a_statement_moves_are_put_back_together() -> Result<()> {
    let db = TestDb::new().await?;
    let mut relay = shards(&db, None)?;
    let outbox = db.pitwheel().outbox();
    let (waiting, moved) =
        ("select count(*) from pitwheel.outbox", "select count(*) from pitwheel.outbox_parked_event");
    for (how, back) in [(Unpark::Retry, 12_000), (Unpark::Skip, 11_999), (Unpark::Drop, 0)] {
        park_many(&db, &mut relay, 12_000).await?;
        // Not moved aside yet.
        let later = add(&db, &["a", "b"]).await?;
        assert_eq!(outbox.unpark(&["a"], how).await?, [("a".to_owned(), back)], "{how:?}");
        let later_of_a = i64::from(how != Unpark::Drop);
        assert_eq!((db.count(waiting).await?, db.count(moved).await?), (back + later_of_a + 1, 0), "{how:?}");
        let mut delivered: Vec<Event> = Vec::new();
        while db.count(waiting).await? > 0 {
            let events = take_events(&mut relay).await?;
            assert_eq!(relay.acknowledge(&events).await?.lost, 0);
            delivered.extend(events);
        }
        let of_a = delivered.iter().filter(|event| event.entity_key == "a").map(|event| event.id);
        assert!(of_a.clone().is_sorted() && of_a.count() as i64 == back + later_of_a, "{how:?}");
        assert!(delivered.iter().any(|event| event.id == later[1]));
    }
    Ok(())
}

/// `b` is parked when the unpark begins, and `a` is parked when it has locked the shards of what was parked.
#[tokio::test]
async fn an_entity_that_is_parked_during_an_unpark_stays_parked() -> Result<()> {
    for in_sql in [false, true] {
        let db = TestDb::new().await?;
        let mut relay = shards(&db, None)?;
        add(&db, &["a", "b"]).await?;
        let mut events = take_events(&mut relay).await?;
        events.sort_by_key(|event| event.id);
        assert!(relay.park(&events[1], "refused").await?);
        // It waits, and the unpark waits for it.
        add(&db, &["b"]).await?;
        let blocker = db.client().await?;
        blocker.batch_execute("begin; select from pitwheel.outbox where entity_key = 'b' for update").await?;
        let (pitwheel, client) = (db.pitwheel().clone(), db.client().await?);
        let unpark = tokio::spawn(async move {
            if in_sql {
                let sql = "select * from pitwheel.unpark('pitwheel.outbox', array['a', 'b'], 'drop', 'test')";
                let ended = client.query(sql, &[]).await?;
                return Ok(ended.iter().map(|row| (row.get(0), row.get(1))).collect());
            }
            anyhow::Ok(pitwheel.outbox().unpark(&["a", "b"], Unpark::Drop).await?)
        });
        wait_until("the unpark waits", async || Ok(db.lock_waits().await? > 0)).await?;
        assert!(relay.park(&events[0], "refused").await?);
        blocker.batch_execute("rollback").await?;

        assert_eq!(unpark.await??, [("b".to_owned(), 0)]);
        let parked = db.pitwheel().outbox().parked(None, 0).await?;
        let parked: Vec<_> = parked.iter().map(|one| (&*one.entity_key, one.events)).collect();
        assert_eq!(parked, [("a", 1)], "its event is not left behind");
        assert_eq!(db.count("select count(*) from pitwheel.outbox").await?, 0);
    }
    Ok(())
}

#[tokio::test]
async fn a_replay_finds_events_beyond_the_ids_of_one_statement() -> Result<()> {
    let db = TestDb::new().await?;
    let outbox = db.pitwheel().outbox();
    // 50,000 ids, a gap, and one more.
    let sent = "insert into pitwheel.outbox_sent (id, created_at, sent_at, entity_key, topic, type)
        select n, now(), case when n % 2 = 0 then now() else now() - interval '2 hours' end,
            case when n in (1, 30000, 50000, 9000000) then 'a' else 'b' end, 'orders', 'changed'
        from (select generate_series(1, 50000) union all select 9000000) as id(n);
        select setval('pitwheel.outbox_id_seq', 9000000)";
    db.client().await?.batch_execute(sent).await?;
    let of_a = Replay { entity_key: Some("a".to_owned()), ..Replay::default() };
    let since = Some(SystemTime::now() - Duration::from_secs(3600));
    assert_eq!(outbox.replay(&Replay { first_id: Some(2), since, ..of_a.clone() }).await?, 3);
    assert_eq!(outbox.replay(&of_a).await?, 1);
    assert_eq!(outbox.replay(&of_a).await?, 0);
    assert_eq!(outbox.replay(&Replay { since, ..Replay::default() }).await?, 24_998);
    assert_eq!(db.count("select count(*) from pitwheel.outbox").await?, 25_002);
    assert_eq!(db.count("select count(*) from pitwheel.outbox_sent").await?, 24_999);
    Ok(())
}
