//! Relays that hold entities one by one, in the outbox and in a table of a team's own.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use pitwheel_testkit::{ChildProcess, block_until, psql};
use serde_json::json;

use crate::relay::next_event;
use crate::support::{Db, Result};

/// A table whose columns have names of their own, and one with the names of the outbox.
const TABLES: &str = r#"
    create schema app;
    create table app."Messages" (seq serial primary key, customer varchar(80) not null, body jsonb,
        status text not null default 'NEW');
    create index on app."Messages" (customer, seq) where status = 'NEW';
    create table app.outbox (id bigserial primary key, entity_key text not null, topic text not null,
        type text not null, payload bytea, headers text, created_at timestamptz not null default '2030-01-31 08:00Z');
    create index on app.outbox (entity_key, id)"#;

const MESSAGES: [&str; 12] = [
    "--table",
    "app.Messages",
    "--column",
    "id=seq",
    "--column=entity_key=customer",
    "--column=payload=body",
    "--constant",
    "topic=orders",
    "--constant",
    "type=placed",
    "--mark",
    "status=NEW,SENT",
];

fn relay<'a>(command: &'a str, strategy: &'a str, args: &[&'a str]) -> Vec<&'a str> {
    [&[command, "--sink", "stdout", "--strategy", strategy], args].concat()
}

#[test]
fn rows_of_a_table_of_your_own_are_sent_in_order_and_marked() -> Result {
    for (command, strategy) in [("relay", "advisory"), ("relay", "row-lock"), ("serve", "advisory")] {
        let db = Db::migrated()?;
        psql(&db.url, TABLES)?;
        let rows = r#"insert into app."Messages" (customer, body)
            select 'a', jsonb_build_object('n', n) from generate_series(1, 3) as n"#;
        psql(&db.url, rows)?;
        let mut args = relay(command, strategy, &MESSAGES);
        if command == "serve" {
            args.extend(["--listen", "127.0.0.1:0"]);
        }
        let mut relay = ChildProcess::spawn(&db.command(&args), Stdio::piped(), Stdio::null())?;
        let mut lines = BufReader::new(relay.take_stdout()?).lines();
        for n in 1..=3 {
            let event = next_event(&mut lines)?;
            assert_eq!(
                (&event["entity"], &event["topic"], &event["type"], &event["payload"]),
                (&json!("a"), &json!("orders"), &json!("placed"), &json!({ "n": n })),
                "{command} {strategy}"
            );
        }
        let sent = r#"select count(*) from app."Messages" where status = 'SENT'"#;
        block_until("the rows are marked", || psql(&db.url, sent).is_ok_and(|count| count == "3"))?;
        relay.signal("TERM")?;
        assert_eq!(relay.wait()?.code(), Some(0));
    }
    Ok(())
}

#[test]
fn a_table_with_the_names_of_the_outbox_needs_no_more_than_its_name() -> Result {
    let db = Db::migrated()?;
    psql(&db.url, TABLES)?;
    psql(
        &db.url,
        "insert into app.outbox (entity_key, topic, type, payload, headers) values ('a', 't', 'u', '7', 'no json')",
    )?;
    let args = relay("relay", "row-lock", &["--table", "app.outbox"]);
    let mut relay = ChildProcess::spawn(&db.command(&args), Stdio::piped(), Stdio::null())?;
    let event = next_event(&mut BufReader::new(relay.take_stdout()?).lines())?;
    assert_eq!((&event["topic"], &event["type"], &event["payload"]), (&json!("t"), &json!("u"), &json!(7)));
    assert!(event.to_string().contains("2030-01-31T08:00:00"), "{event}");
    block_until("the row is deleted", || {
        psql(&db.url, "select count(*) from app.outbox").is_ok_and(|count| count == "0")
    })?;
    relay.signal("TERM")?;
    assert_eq!(relay.wait()?.code(), Some(0));
    Ok(())
}

#[test]
fn the_outbox_itself_needs_an_index_for_claims_of_entities() -> Result {
    let db = Db::migrated()?;
    let args = relay("relay", "advisory", &[]);
    let refused = db.run(&args)?.with_code(2)?;
    refused
        .assert_error("run `create index concurrently on \"pitwheel\".\"outbox\" (\"entity_key\", \"id\")`");
    psql(&db.url, "create index concurrently on pitwheel.outbox (entity_key, id)")?;
    psql(&db.url, "select pitwheel.add_event('a', 'orders', 'placed', '1')")?;
    let mut relay = ChildProcess::spawn(&db.command(&args), Stdio::piped(), Stdio::null())?;
    assert_eq!(next_event(&mut BufReader::new(relay.take_stdout()?).lines())?["payload"], 1);
    assert_eq!(psql(&db.url, "select strategy from pitwheel.outbox_relay")?, "advisory");
    relay.signal("TERM")?;
    assert_eq!(relay.wait()?.code(), Some(0));
    Ok(())
}

#[test]
fn flags_that_do_not_fit_together_are_refused() -> Result {
    let db = Db::migrated()?;
    psql(&db.url, TABLES)?;
    let wrong: [(&str, &[&str], &str); 6] = [
        ("shards", &["--table", "app.outbox"], "`--table` needs `--strategy advisory`"),
        ("advisory", &["--shards", "0-31"], "`--shards` needs `--strategy shards`"),
        ("row-lock", &["--keep", "7"], "`--keep` needs `--strategy shards`"),
        ("advisory", &["--column", "id=seq"], "--table"),
        ("advisory", &["--table", "outbox"], "give the schema and the table"),
        ("advisory", &["--table", "app.outbox", "--mark", "status"], "as in status=NEW,SENT"),
    ];
    for (strategy, args, problem) in wrong {
        let refused = db.run(&relay("relay", strategy, args))?.with_code(2)?;
        assert!(refused.err.contains(problem), "{args:?}: {refused:?}");
    }
    let without_sink = db.run(&["serve", "--strategy", "advisory"])?.with_code(2)?;
    assert!(without_sink.err.contains("--sink"), "{without_sink:?}");
    Ok(())
}

#[test]
fn a_table_that_does_not_fit_is_refused_with_what_to_do() -> Result {
    let db = Db::migrated()?;
    psql(&db.url, TABLES)?;
    psql(&db.url, "create table app.uuids (id uuid, entity_key uuid, body xml)")?;
    let wrong: [(&str, &[&str], &str); 7] = [
        ("app.missing", &[], "table `app.missing` does not exist"),
        ("app.Messages", &[], "has no column `payload`: name it with `--column payload=COLUMN`"),
        ("app.uuids", &["--column=payload=body"], "has the type `xml`: `payload` needs bytea or jsonb"),
        ("app.Messages", &MESSAGES[2..6], "or give `--constant topic=VALUE`"),
        ("app.outbox", &["--constant=topic=a b"], "topic `a b` is not legal for Kafka"),
        ("app.outbox", &["--mark=status=NEW,SENT"], "no column `status`: check `--mark`"),
        ("app.outbox", &["--column=topic=type", "--constant=topic=x"], "is a column and a constant"),
    ];
    for (table, args, problem) in wrong {
        let args = [&["--table", table], args].concat();
        db.run(&relay("relay", "advisory", &args))?.with_code(2)?.assert_error(problem);
    }
    let args = relay("relay", "advisory", &["--table=app.outbox", "--column=payload=headers"]);
    psql(&db.url, "drop index app.outbox_entity_key_id_idx")?;
    db.run(&args)?.with_code(2)?.assert_error("has no index for claims");
    Ok(())
}
