//! `pitwheel outbox`: what waits, what is parked, and what an operator does about it.

use pitwheel_testkit::psql;
use serde_json::json;

use crate::support::{Db, Result};

fn insert(db: &Db, entity: &str) -> Result {
    let sql = format!(
        "insert into pitwheel.outbox (entity_key, topic, type, payload) values ('{entity}', 'orders', 'placed', '1')"
    );
    psql(&db.url, &sql)?;
    Ok(())
}

/// Parks an entity as a relay does.
fn park(db: &Db, entity: &str) -> Result {
    let sql = format!(
        "with moved as (delete from pitwheel.outbox where entity_key = '{entity}' returning *), parked as (
            insert into pitwheel.outbox_parked (entity_key, shard, event_id, topic, reason)
            select entity_key, shard, id, topic, 'too large' from moved order by id limit 1)
        insert into pitwheel.outbox_parked_event (entity_key, id, created_at, topic, type, payload)
        select entity_key, id, created_at, topic, type, payload from moved"
    );
    psql(&db.url, &sql)?;
    Ok(())
}

#[test]
fn an_operator_sees_what_waits_and_where() -> Result {
    let db = Db::migrated()?;
    insert(&db, "a")?;
    let status = db.json(&["outbox", "status"])?;
    assert_eq!((&status["waiting"], &status["parked"]), (&json!(1), &json!(0)));
    assert!(db.run(&["outbox", "status"])?.with_code(0)?.err.contains("no relay is running"));
    assert_eq!(db.json(&["outbox", "shards"])?.as_array().map(Vec::len), Some(64));
    let id = psql(&db.url, "select id from pitwheel.outbox")?;
    assert_eq!(db.json(&["outbox", "trace", &id])?[0]["state"], "waiting");
    db.run(&["outbox", "trace", "999"])?.with_code(3)?.assert_error("event 999 was not found");
    Ok(())
}

#[test]
fn an_operator_ends_the_parking_of_an_entity() -> Result {
    let db = Db::migrated()?;
    for entity in ["a", "b", "c"] {
        insert(&db, entity)?;
        insert(&db, entity)?;
        park(&db, entity)?;
    }
    let parked = db.json(&["outbox", "parked"])?;
    assert_eq!(parked.as_array().map(Vec::len), Some(3));
    assert_eq!((&parked[0]["entity"], &parked[0]["reason"]), (&json!("a"), &json!("too large")));

    assert_eq!(db.json(&["outbox", "retry", "a"])?, json!([{ "entity": "a", "events": 2 }]));
    assert_eq!(db.json(&["outbox", "skip", "b"])?, json!([{ "entity": "b", "events": 1 }]));
    assert_eq!(db.json(&["outbox", "drop", "c"])?, json!([{ "entity": "c", "events": 0 }]));

    assert_eq!(psql(&db.url, "select count(*) from pitwheel.outbox")?, "3");
    assert!(db.run(&["outbox", "parked"])?.with_code(0)?.err.contains("no entities are parked"));
    let again = db.run(&["outbox", "retry", "a"])?.with_code(3)?;
    assert!(again.err.contains("not parked: a"), "{again:#?}");
    db.run(&["outbox", "replay"])?.with_code(2)?;
    Ok(())
}
