//! The outbox over HTTP: status, parked entities, replay, and where an event is.

mod support;

use std::time::Duration;

use anyhow::{Context as _, Result};
use pitwheel::NewEvent;
use pitwheel::engine::outbox::{RelayOptions, Shards, Strategy};
use pitwheel_testkit::{Http, TestDb};
use serde_json::{Value, json};

use crate::support::Node;

const LEASE: Duration = Duration::from_secs(30);

async fn serve() -> Result<(TestDb, Node, Http)> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let http = Http::new(node.address);
    Ok((db, node, http))
}

async fn get(http: &Http, path: &str) -> Result<Value> {
    let response = http.get(path).await?;
    anyhow::ensure!(response.status == 200, "{path}: {}", response.text);
    response.json()
}

fn relay(db: &TestDb) -> Result<Shards> {
    let pool = db.pitwheel().pool_for_loops(2, Duration::from_secs(10))?;
    let options = RelayOptions { keep: Some(Duration::from_secs(86400)), ..RelayOptions::default() };
    Ok(Shards::new(pool, options)?)
}

#[tokio::test]
async fn operators_see_parked_entities_and_let_them_go_on() -> Result<()> {
    let (db, node, http) = serve().await?;
    let added = db.pitwheel().outbox().add([NewEvent::new("a", "orders", "paid", "x")]).await?;
    let status = get(&http, "/api/v1/outbox").await?;
    assert_eq!(
        (&status["waiting"], &status["parked"], &status["relays"]),
        (&json!(1), &json!(0), &json!([]))
    );
    assert!(http.get("/metrics").await?.text.contains("pitwheel_outbox_events_waiting 1"));

    let mut relay = relay(&db)?;
    let events = relay.take(100).await?.events;
    assert!(relay.park(&events[0], "too large").await?);
    let status = get(&http, "/api/v1/outbox").await?;
    assert_eq!((&status["parked"], &status["relays"][0]["held"]), (&json!(1), &json!(64)));
    assert_eq!(status["shards"].as_array().context("no shards")?.len(), 64);
    let parked = get(&http, "/api/v1/outbox/parked").await?["parked"][0].clone();
    assert_eq!((&parked["entity_key"], &parked["reason"]), (&json!("a"), &json!("too large")));
    let next = get(&http, "/api/v1/outbox/parked?after_source=pitwheel.outbox&after_key=a").await?;
    assert_eq!(next["parked"], json!([]));
    let trace = format!("/api/v1/outbox/events/{}", added[0]);
    assert_eq!(get(&http, &trace).await?["places"][0]["state"], "parked");

    let body = json!({ "entity_keys": ["a", "b"], "how": "retry" });
    let unparked = http.post("/api/v1/outbox/unpark", &body).await?;
    assert_eq!(unparked.json()?, json!({ "unparked": [{ "entity_key": "a", "events": 1 }] }));
    relay.turn_soon();
    let events = relay.take(100).await?.events;
    assert_eq!(relay.acknowledge(&events).await?.lost, 0);
    assert_eq!(get(&http, &trace).await?["places"][0]["state"], "sent");

    let replayed = http.post("/api/v1/outbox/replay", &json!({ "first_id": added[0] })).await?;
    assert_eq!(replayed.json()?, json!({ "events": 1 }));
    assert_eq!(get(&http, "/api/v1/outbox").await?["waiting"], 1);
    node.stop().await
}

#[tokio::test]
async fn wrong_requests_are_refused_with_what_to_do() -> Result<()> {
    let (_db, node, http) = serve().await?;
    for (path, body) in [
        ("unpark", json!({ "entity_keys": ["a"], "how": "forget" })),
        ("unpark", json!({ "entity_keys": ["a"], "how": "drop", "source": "public.mine" })),
        ("replay", json!({})),
        ("replay", json!({ "since": "yesterday" })),
    ] {
        let response = http.post(&format!("/api/v1/outbox/{path}"), &body).await?;
        assert_eq!(response.status, 400, "{body}: {}", response.text);
    }
    assert_eq!(http.get("/api/v1/outbox/parked?after_key=a").await?.status, 400);
    assert_eq!(http.get("/api/v1/outbox/events/7").await?.status, 404);
    node.stop().await
}
