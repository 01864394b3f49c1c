//! Recurring jobs over HTTP and gRPC.

mod support;

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use pitwheel::{Context, Role, Verdict, Worker};
use pitwheel_server::Options;
use pitwheel_testkit::{Http, TestDb, Work, start_worker, wait_until};
use serde_json::{Value, json};

use crate::support::Node;

const LEASE: Duration = Duration::from_secs(30);

async fn serve() -> Result<(TestDb, Node, Http)> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let http = Http::new(node.address);
    Ok((db, node, http))
}

async fn ok(http: &Http, path: &str, body: Value) -> Result<Value> {
    let response = http.post(&format!("/api/v1/recurring{path}"), &body).await?;
    ensure!([200, 201].contains(&response.status), "{path}: {}", response.text);
    response.json()
}

#[tokio::test]
async fn a_recurring_job_is_created_once_and_changed() -> Result<()> {
    let (db, node, http) = serve().await?;
    let new = json!({ "kind": "work", "key": "k", "cadence": "every 15m", "payload": { "n": 1 },
        "first_at": "2099-01-01T00:00:00Z" });
    let created = http.post("/api/v1/recurring", &new).await?;
    assert_eq!(created.status, 201, "{}", created.text);
    let created = created.json()?;
    let id = created["id"].as_i64().context("an id")?;
    assert_eq!(
        (&created["reason"], &created["next_run_at"]),
        (&json!("created"), &json!("2099-01-01T00:00:00Z"))
    );
    assert_eq!(http.post("/api/v1/recurring", &new).await?.status, 200, "it existed");

    assert_eq!(ok(&http, &format!("/{id}/disable"), json!({})).await?["enabled"], json!(false));
    assert_eq!(http.post(&format!("/api/v1/recurring/{id}/run"), &json!({})).await?.status, 400);
    assert_eq!(
        ok(&http, &format!("/{id}/enable"), json!({})).await?["next_run_at"],
        json!("2099-01-01T00:00:00Z")
    );
    assert_eq!(ok(&http, &format!("/{id}/run"), json!({})).await?, json!({ "id": id, "outcome": "due" }));
    let json = http.header("content-type", "application/json");
    let path = format!("/api/v1/recurring/{id}/cadence");
    let changed =
        json.send("PUT", &path, r#"{"cadence":"cron 0 3 * * *","misfire":"skip"}"#).await?.json()?;
    assert_eq!((&changed["cadence"], &changed["misfire"]), (&json!("cron 0 3 * * * UTC"), &json!("skip")));
    let refused = json.send("PUT", &path, r#"{"cadence":"hourly"}"#).await?;
    assert!(refused.status == 400 && refused.text.contains("every 15m"), "{}", refused.text);

    for (filter, count) in [("enabled=true&queue=default", 1), ("enabled=false", 0), ("queue=other", 0)] {
        let listed = http.get(&format!("/api/v1/recurring?kind=work&key=k&{filter}")).await?.json()?;
        assert_eq!(listed["recurring"].as_array().map(Vec::len), Some(count), "{filter}: {listed}");
    }
    let listed = http.get("/api/v1/recurring?kind=work&key=k").await?.json()?;
    assert_eq!(listed["recurring"][0]["id"], json!(id));
    assert_eq!(http.get("/api/v1/recurring?enabled=false").await?.json()?["recurring"], json!([]));
    let times = http.get(&format!("/api/v1/recurring/{id}/times?count=4")).await?.json()?;
    assert_eq!(times["times"].as_array().map(Vec::len), Some(4));
    for count in [0, 1001] {
        assert_eq!(
            http.get(&format!("/api/v1/recurring/{id}/times?count={count}")).await?.status,
            400,
            "{count}"
        );
    }
    let runs = http.get(&format!("/api/v1/recurring/{id}/runs")).await?.json()?;
    assert_eq!(runs["runs"][0]["state"], json!("waiting"));
    let audit = db.pitwheel().audit(None, 1).await?;
    assert_eq!((&*audit[0].actor, &*audit[0].action), ("loopback", "recurring.change"));

    assert_eq!(http.send("DELETE", &format!("/api/v1/recurring/{id}"), "").await?.status, 204);
    assert_eq!(http.get(&format!("/api/v1/recurring/{id}")).await?.status, 404);
    node.stop().await
}

#[tokio::test]
async fn roles_decide_who_creates_and_who_changes() -> Result<()> {
    let db = TestDb::new().await?;
    let mut options = Options::default();
    options.require_tokens = true;
    let node = Node::start_with(db.pitwheel(), options, "127.0.0.1:0".parse()?).await?;
    let http = |secret: &str| Http::new(node.address).token(secret);
    let token = async |name: &str, role| {
        Ok::<_, pitwheel::Error>(db.pitwheel().create_token(name, role, None).await?.1)
    };
    let (producer, viewer) = (token("p", Role::Producer).await?, token("v", Role::Viewer).await?);
    let new = json!({ "kind": "work", "key": "secret", "cadence": "every 15m" });
    assert_eq!(http(&viewer).post("/api/v1/recurring", &new).await?.status, 403);
    let created = http(&producer).post("/api/v1/recurring", &new).await?;
    assert_eq!(created.status, 201, "{}", created.text);
    let id = created.json()?["id"].to_string();
    assert_eq!(
        http(&producer).post(&format!("/api/v1/recurring/{id}/disable"), &json!({})).await?.status,
        403
    );
    db.pitwheel().redact("work", true).await?;
    let shown = http(&viewer).get(&format!("/api/v1/recurring/{id}")).await?.json()?;
    assert_eq!(
        (&shown["key"], &shown["payload"], &shown["redacted"]),
        (&json!(null), &json!(null), &json!(true))
    );
    let found = http(&viewer).get("/api/v1/recurring?kind=work&key=secret").await?.json()?;
    assert_eq!(found["recurring"], json!([]));
    node.stop().await
}

#[tokio::test]
async fn a_remote_worker_runs_and_the_server_plans_the_next_run() -> Result<()> {
    let (db, node, _) = serve().await?;
    let jobs = db.pitwheel().recurring();
    let new = pitwheel::NewRecurring::of(&Work { n: 1 }, "k", "adaptive 1m..1h".parse()?);
    let id = jobs.create(new).await?.id;
    let handler = async |_: Work, context: Context| {
        let run = context.recurring().ok_or("it is a run")?;
        if run.consecutive_failures == 0 { Err("once") } else { Ok(Verdict::complete().found(0)) }
    };
    let worker = Worker::remote(&node.url()).queue("default", 5).name("remote");
    let running = start_worker(worker.handle(handler));
    let failed = async || Ok(jobs.get(id).await?.summary.consecutive_failures == 1);
    wait_until("the first attempt has failed", failed).await?;
    jobs.run_now(id).await?;
    wait_until("it has run", async || Ok(jobs.get(id).await?.summary.runs == 1)).await?;
    running.stop().await?;
    let after = jobs.get(id).await?.summary;
    assert_eq!((after.interval, after.consecutive_failures), (Some(Duration::from_secs(90)), 0));
    assert_eq!(after.reason.as_deref(), Some("it found nothing new: 1m30s instead of 1m"));
    assert_eq!(db.count("select count(*) from pitwheel.job where recurring is not null").await?, 1);
    node.stop().await
}
