//! Events from the outbox to standard output, by `pitwheel relay` and by `pitwheel serve`.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::Stdio;

use pitwheel_testkit::{ChildProcess, Http, block_until, psql};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

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
fn a_relay_serves_its_metrics_and_its_health_and_nothing_else() -> Result {
    let db = Db::migrated()?;
    for entity in ["a", "b"] {
        insert(&db, entity, "1")?;
    }
    let command = db.command(&["relay", "--sink", "stdout", "--listen", "127.0.0.1:0"]);
    let mut relay = ChildProcess::spawn(&command, Stdio::null(), Stdio::piped())?;
    let mut lines = BufReader::new(relay.take_stderr()?).lines();
    let address = lines.by_ref().map_while(Result::ok).find_map(|line| {
        let (_, rest) = line.split_once("http://")?;
        rest.split_once("/metrics")?.0.parse::<SocketAddr>().ok()
    });
    let address = address.ok_or("the relay ended")?;
    let (runtime, http) = (Runtime::new()?, Http::new(address));
    let get = |path: &str| runtime.block_on(http.get(path));
    assert_eq!(get("/healthz")?.status, 200);
    assert_eq!(get("/readyz")?.status, 200);
    assert_eq!(get("/api/v1/jobs")?.status, 404);
    assert_eq!(get("/api/openapi.json")?.status, 404);
    let all = [
        "pitwheel_outbox_events_delivered_total 2",
        "pitwheel_outbox_relays 1",
        "pitwheel_outbox_events_waiting 0",
        "pitwheel_outbox_read_duration_seconds_count",
        "pitwheel_outbox_shards_moved_total{how=\"acquired\"} 64",
        "pitwheel_build_info",
    ];
    let is_shown = |text: &str| all.iter().all(|line| text.contains(line));
    block_until("the metrics of the relay", || {
        get("/metrics").is_ok_and(|scraped| scraped.status == 200 && is_shown(&scraped.text))
    })?;
    relay.signal("TERM")?;
    assert_eq!(relay.wait()?.code(), Some(0));
    assert!(lines.map_while(Result::ok).any(|line| line.contains("stopped: 2 events sent")));
    assert_eq!(relays(&db), "0", "it signed off");
    Ok(())
}

#[test]
fn a_relay_that_cannot_serve_its_metrics_does_not_start() -> Result {
    let db = Db::migrated()?;
    insert(&db, "a", "1")?;
    let open = db.run(&["relay", "--sink", "stdout", "--listen", "0.0.0.0:0"])?.with_code(2)?;
    assert!(open.err.contains("token"), "{open:?}");
    assert_eq!(open.out, "", "nothing was sent");
    assert_eq!(psql(&db.url, "select count(*) from pitwheel.outbox")?, "1");
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
