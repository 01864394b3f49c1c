//! Events from the outbox to standard output, by `pitwheel relay` and by `pitwheel serve`.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use pitwheel_testkit::{ChildProcess, block_until, psql};
use serde_json::{Value, json};

use crate::support::{Db, Result};

fn insert(db: &Db, entity: &str, payload: &str) -> Result {
    let sql = format!(
        "insert into pitwheel.outbox (entity_key, topic, type, payload)
         values ('{entity}', 'orders', 'placed', '{payload}')"
    );
    psql(&db.url, &sql)?;
    Ok(())
}

/// The next line of standard output that is an event.
pub(crate) fn next_event(lines: &mut impl Iterator<Item = std::io::Result<String>>) -> Result<Value> {
    for line in lines {
        if let Ok(event @ Value::Object(_)) = serde_json::from_str(&line?) {
            return Ok(event);
        }
    }
    Err("the relay ended".into())
}

fn relays(db: &Db) -> String {
    psql(&db.url, "select count(*) from pitwheel.outbox_relay").unwrap_or_default()
}

#[test]
fn a_relay_prints_events_in_order_and_gives_its_shards_up_when_it_stops() -> Result {
    let db = Db::migrated()?;
    insert(&db, "a", r#"{"n": 1}"#)?;
    let mut relay =
        ChildProcess::spawn(&db.command(&["relay", "--sink", "stdout"]), Stdio::piped(), Stdio::null())?;
    let mut lines = BufReader::new(relay.take_stdout()?).lines();
    let first = next_event(&mut lines)?;
    assert_eq!(first["payload"], json!({ "n": 1 }));
    assert_eq!(
        (&first["entity"], &first["topic"], &first["type"]),
        (&json!("a"), &json!("orders"), &json!("placed"))
    );
    insert(&db, "a", "2")?;
    insert(&db, "a", "3")?;
    assert_eq!(next_event(&mut lines)?["payload"], 2);
    assert_eq!(next_event(&mut lines)?["payload"], 3);

    relay.signal("TERM")?;
    assert_eq!(relay.wait()?.code(), Some(0));
    assert_eq!(relays(&db), "0", "it signed off");
    assert_eq!(psql(&db.url, "select count(*) from pitwheel.outbox_shard where relay is not null")?, "0");
    assert_eq!(psql(&db.url, "select count(*) from pitwheel.outbox")?, "0");
    Ok(())
}

#[test]
fn a_server_with_a_sink_runs_a_relay() -> Result {
    let db = Db::migrated()?;
    insert(&db, "a", "1")?;
    let command = db.command(&["serve", "--listen", "127.0.0.1:0", "--sink", "stdout"]);
    let mut node = ChildProcess::spawn(&command, Stdio::piped(), Stdio::null())?;
    let mut lines = BufReader::new(node.take_stdout()?).lines();
    assert_eq!(next_event(&mut lines)?["payload"], 1);
    node.signal("TERM")?;
    assert_eq!(node.wait()?.code(), Some(0));
    block_until("the relay has signed off", || relays(&db) == "0")?;
    Ok(())
}

#[test]
fn a_relay_names_what_is_wrong_with_its_sink() -> Result {
    let db = Db::migrated()?;
    db.run(&["relay"])?.with_code(2)?.assert_error("no sink is set");
    db.run(&["relay", "--sink", "amqp://x"])?.with_code(2)?.assert_error("`amqp://x` is not a sink");
    std::fs::write(db.folder().join("kafka.properties"), "acks = 1\n")?;
    let args = ["relay", "--sink", "kafka://127.0.0.1:1", "--kafka-config", "kafka.properties"];
    db.run(&args)?.with_code(2)?.assert_error("`acks` is fixed");
    db.run(&["serve", "--sink", "nowhere"])?.with_code(2)?.assert_error("`nowhere` is not a sink");
    Ok(())
}
