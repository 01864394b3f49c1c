//! What operators and programs do over HTTP.

mod support;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use pitwheel::{Context, State, Worker};
use pitwheel_testkit::{Http, TestDb, Work, start_worker, wait_until};
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

use crate::support::Node;

const LEASE: Duration = Duration::from_secs(30);
/// A worker receives a command with its next heartbeat, so a short lease makes this fast.
const SHORT_LEASE: Duration = Duration::from_secs(2);

const TRACEPARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

async fn serve() -> Result<(TestDb, Node, Http)> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let http = Http::new(node.address);
    Ok((db, node, http))
}

#[tokio::test]
async fn a_job_is_enqueued_and_shown_byte_for_byte() -> Result<()> {
    let (_db, node, http) = serve().await?;
    let body = r#"{"jobs":[{"kind":"work","payload":{"n": 1.50, "big": 12345678901234567890},"metadata":{"a":1},
        "queue":"mail","priority":5,"max_attempts":3,"timeout_ms":1500,"key":"k"},{"kind":"other"}]}"#;
    let json = http.header("content-type", "application/json");
    let traced = json.header("traceparent", TRACEPARENT);
    let response = traced.send("POST", "/api/v1/jobs", body).await?;
    assert_eq!(response.status, 201, "{}", response.text);
    let first = response.json()?["jobs"][0]["id"].as_i64().context("no id")?;
    let shown = http.get(&format!("/api/v1/jobs/{first}")).await?;
    assert!(shown.text.contains(r#""payload":{"n": 1.50, "big": 12345678901234567890}"#), "{}", shown.text);
    let shown = shown.json()?;
    assert_eq!(shown["metadata"]["traceparent"], TRACEPARENT);
    assert_eq!(
        (&shown["queue"], &shown["priority"], &shown["state"]),
        (&json!("mail"), &json!(5), &json!("waiting"))
    );
    let again = json.send("POST", "/api/v1/jobs", body).await?.json()?;
    assert_eq!(again["jobs"][0], json!({ "id": first, "is_new": false }), "its key is taken");
    node.stop().await
}

#[tokio::test]
async fn jobs_are_changed_by_id_and_by_filter() -> Result<()> {
    let (db, node, http) = serve().await?;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(db.job().kind("work").insert().await?);
    }
    let outcome = async |path: &str, body: Value| -> Result<Value> {
        let response = http.post(&format!("/api/v1/jobs/{path}"), &body).await?;
        anyhow::ensure!(response.status == 200, "{path}: {}", response.text);
        Ok(response.json()?["jobs"]
            .as_array()
            .context("no list")?
            .iter()
            .map(|job| job["outcome"].clone())
            .collect())
    };
    assert_eq!(outcome("cancel", json!({ "ids": [ids[0], 4711] })).await?, json!(["done", "not_found"]));
    assert_eq!(
        outcome("cancel", json!({ "filter": { "state": "waiting" } })).await?,
        json!(["done", "done"])
    );
    assert_eq!(
        outcome("retry", json!({ "filter": { "state": "cancelled", "kind": "work" } }))
            .await?
            .as_array()
            .map(Vec::len),
        Some(3)
    );
    let later = json!({ "ids": [ids[0]], "run_at": "2199-01-01T00:00:00Z" });
    assert_eq!(outcome("reschedule", later).await?, json!(["done"]));
    assert_eq!(
        http.get(&format!("/api/v1/jobs/{}", ids[0])).await?.json()?["run_at"],
        "2199-01-01T00:00:00Z"
    );
    assert_eq!(outcome("delete", json!({ "ids": ids })).await?, json!(["done", "done", "done"]));
    assert_eq!(db.state(ids[0]).await?, None);
    for wrong in [
        json!({}),
        json!({ "ids": [1], "filter": {} }),
        json!({ "filter": {} }),
        json!({ "ids": [1], "run_at": "2030-01-01T00:00:00Z" }),
    ] {
        let response = http.post("/api/v1/jobs/cancel", &wrong).await?;
        assert_eq!(
            (response.status, response.content_type.as_str()),
            (400, "application/problem+json"),
            "{wrong}"
        );
    }
    let audit = http.get("/api/v1/audit").await?.json()?;
    let actions: Vec<&Value> =
        audit["changes"].as_array().context("no list")?.iter().map(|line| &line["action"]).collect();
    assert_eq!(actions, ["job.delete", "job.reschedule", "job.retry", "job.cancel", "job.cancel"]);
    assert_eq!(audit["changes"][0]["actor"], "loopback");
    node.stop().await
}

#[tokio::test]
async fn lists_are_paged_and_filtered() -> Result<()> {
    let (db, node, http) = serve().await?;
    for n in 0..7 {
        db.job().kind(if n % 2 == 0 { "even" } else { "odd" }).insert().await?;
    }
    let (mut path, mut seen) = ("/api/v1/jobs?limit=3".to_owned(), 0);
    loop {
        let page = http.get(&path).await?.json()?;
        seen += page["jobs"].as_array().context("no list")?.len();
        let Some(next) = page["next"].as_i64() else { break };
        path = format!("/api/v1/jobs?limit=3&before={next}");
    }
    assert_eq!(seen, 7);
    let odd = http.get("/api/v1/jobs?kind=odd&state=waiting").await?.json()?;
    assert_eq!(odd["jobs"].as_array().map(Vec::len), Some(3));
    http.post("/api/v1/jobs/cancel", &json!({ "filter": { "kind": "odd", "state": "waiting" } })).await?;
    let finished = http.get("/api/v1/history").await?.json()?;
    assert_eq!(finished["jobs"].as_array().map(Vec::len), Some(3));
    for wrong in [
        "jobs?state=nix",
        "jobs?limit=1001",
        "jobs?limit=x",
        "jobs?limit=0",
        "history?limit=0",
        "lanes/jobs?lane=7&limit=0",
        "outbox/parked?limit=0",
        "pipelines?limit=0",
        "recurring?limit=0",
        "recurring/1/runs?limit=0",
        "workers?limit=0",
        "audit?limit=0",
        "jobs?foo=1",
        "jobs?before=a",
        "history?state=waiting",
        "jobs?kind=%00",
    ] {
        let response = http.get(&format!("/api/v1/{wrong}")).await?;
        assert_eq!(
            (response.status, response.content_type.as_str()),
            (400, "application/problem+json"),
            "{wrong}"
        );
    }
    node.stop().await
}

#[tokio::test]
async fn a_queue_is_paused_and_resumed() -> Result<()> {
    let (db, node, http) = serve().await?;
    db.job().kind("work").insert().await?;
    assert_eq!(http.post("/api/v1/queues/default/pause", &Value::Null).await?.json()?["paused"], true);
    let mut stream = node.stream(1).await?;
    let queue = http.get("/api/v1/queues").await?.json()?["queues"][0].clone();
    assert!(queue["paused_at"].is_string(), "{queue}");
    assert_eq!(queue["waiting"], 1);
    http.post("/api/v1/queues/default/resume", &Value::Null).await?;
    assert_eq!(stream.jobs().await?.len(), 1);
    assert_eq!(http.post("/api/v1/queues/%20/pause", &Value::Null).await?.status, 400);
    assert_eq!(http.post("/api/v1/queues/*/pause", &Value::Null).await?.status, 200);
    let all = http.get("/api/v1/queues").await?.json()?;
    assert!(all["queues"].as_array().context("no list")?.iter().any(|queue| queue["name"] == "*"));
    node.stop().await
}

#[tokio::test]
async fn a_drained_worker_finishes_its_jobs_and_ends() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), SHORT_LEASE).await?;
    let http = Http::new(node.address);
    for remote in [true, false] {
        let (begun, mut begins) = mpsc::unbounded_channel();
        let (go, going) = tokio::sync::watch::channel(false);
        let handler = move |_: Work, _: Context| {
            let (begun, mut going) = (begun.clone(), going.clone());
            async move {
                let _ = begun.send(());
                going.wait_for(|go| *go).await.map(drop).map_err(|error| error.to_string())
            }
        };
        let worker =
            if remote { Worker::remote(&node.url()) } else { Worker::new(db.pitwheel()).lease(SHORT_LEASE) };
        let running =
            start_worker(worker.name("one").queue("default", 5).grace(Duration::ZERO).handle(handler));
        let id = db.pitwheel().enqueue(&Work { n: 1 }).await?.id;
        begins.recv().await.context("the job never began")?;
        let worker = http.get("/api/v1/workers").await?.json()?["workers"][0].clone();
        assert_eq!(
            (&worker["name"], &worker["running"], &worker["state"]),
            (&json!("one"), &json!(1), &json!("alive"))
        );
        assert_eq!(worker["transport"], if remote { "grpc" } else { "direct" });
        let path = format!("/api/v1/workers/{}/drain", worker["id"]);
        assert_eq!(http.post(&path, &Value::Null).await?.status, 200);
        let left = db.pitwheel().enqueue(&Work { n: 2 }).await?.id;
        wait_until("it is draining", async || {
            Ok(http.get("/api/v1/workers").await?.json()?["workers"][0]["state"] == "draining")
        })
        .await?;
        go.send(true)?;
        let stats = running.ended().await?;
        assert_eq!((stats.started, stats.settled), (1, 1), "the running job is done, without a shutdown");
        assert_eq!(db.state(id).await?, Some(State::Done));
        assert_eq!(db.state(left).await?, Some(State::Waiting), "left for another worker");
        db.pitwheel().cancel(left).await?;
    }
    node.stop().await
}

#[tokio::test]
async fn events_show_progress_and_state_as_they_change() -> Result<()> {
    let (db, node, http) = serve().await?;
    let id = db.job().kind("work").payload(r#"{"n":1}"#).insert().await?;
    let mut events = http.events(&format!("/api/v1/events?jobs={id},4711")).await?;
    let (name, job) = events.next().await?;
    assert_eq!(
        (name.as_str(), &job["state"]),
        ("job", &json!("waiting")),
        "the first event is the current state"
    );
    assert_eq!(events.next().await?, ("not_found".to_owned(), json!({ "id": 4711 })));
    let seen = Arc::new(Notify::new());
    let go_on = seen.clone();
    let handler = move |_: Work, context: Context| {
        let go_on = go_on.clone();
        async move {
            context.progress(0.5, "half");
            go_on.notified().await;
            Ok::<(), String>(())
        }
    };
    let running = start_worker(Worker::remote(&node.url()).queue("default", 1).handle(handler));
    let mut states = Vec::new();
    loop {
        let (name, job) = events.next().await?;
        if name == "end" {
            break;
        }
        if (&job["state"], &job["note"]) == (&json!("running"), &json!("half")) {
            seen.notify_one();
        }
        states.push(job["state"].as_str().unwrap_or_default().to_owned());
    }
    assert_eq!(states.last().map(String::as_str), Some("done"), "{states:?}");
    running.stop().await?;

    let mut queues = http.events("/api/v1/events").await?;
    db.job().kind("work").queue("mail").insert().await?;
    loop {
        let (name, queue) = queues.next().await?;
        assert_eq!((name.as_str(), &queue["name"]), ("queue", &json!("mail")));
        // A query that began just before the insert and still saw the job counts it as due later.
        if queue["later"] != 1 {
            assert_eq!((&queue["waiting"], &queue["later"]), (&json!(1), &json!(0)));
            break;
        }
    }
    db.client().await?.batch_execute("delete from pitwheel.job where queue = 'mail'").await?;
    let (_, queue) = queues.next().await?;
    assert_eq!((&queue["name"], &queue["waiting"]), (&json!("mail"), &json!(0)), "its last job is gone");
    node.stop().await
}

#[tokio::test]
async fn a_node_reports_its_health_and_its_readiness() -> Result<()> {
    let (db, node, http) = serve().await?;
    assert_eq!(http.get("/healthz").await?.status, 200);
    assert_eq!(http.get("/readyz").await?.status, 200);
    db.client()
        .await?
        .batch_execute("update pitwheel.migration set version = version + 100, breaking = true")
        .await?;
    wait_until("it is not ready", async || Ok(http.get("/readyz").await?.status == 503)).await?;
    assert_eq!(http.get("/healthz").await?.status, 200);
    node.stop().await
}

#[tokio::test]
async fn probes_that_wait_for_the_database_leave_its_connections_to_others() -> Result<()> {
    let (db, node, http) = serve().await?;
    // Its start reads the schema too.
    assert_eq!(http.get("/healthz").await?.status, 200);
    let locker = db.client().await?;
    locker.batch_execute("begin; lock table pitwheel.migration in access exclusive mode").await?;
    let mut probes = JoinSet::new();
    for _ in 0..50 {
        let http = http.clone();
        probes.spawn(async move { http.get("/readyz").await });
    }
    let waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
    wait_until("a probe waits", async || Ok(db.count(waiting).await? > 0)).await?;
    for _ in 0..50 {
        let jobs = json!({ "jobs": [{ "kind": "work", "payload": {} }] });
        assert_eq!(http.post("/api/v1/jobs", &jobs).await?.status, 201);
    }
    locker.batch_execute("rollback").await?;
    for probe in probes.join_all().await {
        let status = probe?.status;
        assert!([200, 503].contains(&status), "{status}: 503 after two seconds");
    }
    wait_until("the node is ready again", async || Ok(http.get("/readyz").await?.status == 200)).await?;
    node.stop().await
}
