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
fn entities_of_a_table_of_ones_own_are_listed_with_it_and_retried() -> Result {
    let db = Db::migrated()?;
    insert(&db, "a")?;
    park(&db, "a")?;
    let own = "insert into pitwheel.outbox_parked (source, entity_key, event_id, topic, reason)
        values ('app.messages', 'a', 7, 'orders', 'too large')";
    psql(&db.url, own)?;
    let parked = db.json(&["outbox", "parked"])?;
    let line = |at: usize| (&parked[at]["source"], &parked[at]["event_id"], &parked[at]["events"]);
    assert_eq!(line(0), (&json!("app.messages"), &json!(7), &json!(0)));
    assert_eq!((line(1).0, line(1).2), (&json!("pitwheel.outbox"), &json!(1)));
    assert!(db.run(&["outbox", "parked"])?.with_code(0)?.out.contains("app.messages"));
    let page = db.run(&["outbox", "parked", "--limit", "1"])?.with_code(0)?;
    assert!(page.err.contains("`--after a --table app.messages`"), "{page:#?}");
    let next = db.json(&["outbox", "parked", "--after", "a", "--table", "app.messages"])?;
    assert_eq!((next.as_array().map(Vec::len), &next[0]["source"]), (Some(1), &json!("pitwheel.outbox")));

    db.run(&["outbox", "skip", "a", "--table", "app.messages"])?.with_code(2)?;
    let retried = db.run(&["outbox", "retry", "a", "--table", "app.messages"])?.with_code(0)?;
    assert_eq!(retried.out, "a: its events are sent again\n");
    Ok(())
}

#[test]
fn a_key_is_one_word_of_the_command_for_the_next_page() -> Result {
    let db = Db::migrated()?;
    let entity = "a $(id)\u{1b}[2J";
    insert(&db, entity)?;
    park(&db, entity)?;
    let page = db.run(&["outbox", "parked", "--limit", "1"])?.with_code(0)?;
    assert!(page.err.contains(r"`--after 'a $(id)\u{1b}[2J'`"), "{page:#?}");
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
    assert_eq!((&parked[0]["entity_key"], &parked[0]["reason"]), (&json!("a"), &json!("too large")));

    assert_eq!(db.json(&["outbox", "retry", "a"])?, json!([{ "entity_key": "a", "events": 2 }]));
    assert_eq!(db.run(&["outbox", "skip", "b"])?.with_code(0)?.out, "b: 1 events are sent again\n");
    assert_eq!(db.run(&["outbox", "drop", "c"])?.with_code(0)?.out, "c: its events are deleted\n");

    assert_eq!(psql(&db.url, "select count(*) from pitwheel.outbox")?, "3");
    assert!(db.run(&["outbox", "parked"])?.with_code(0)?.err.contains("no entities are parked"));
    let again = db.run(&["outbox", "retry", "a"])?.with_code(3)?;
    assert!(again.err.contains("not parked: a"), "{again:#?}");
    db.run(&["outbox", "replay"])?.with_code(2)?;
    Ok(())
}
