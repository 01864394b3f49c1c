//! A node that serves no workers answers calls and does nothing by itself. A job that no live worker takes stays where it is, and shows
//! as such.

mod support;

use std::time::Duration;

use anyhow::Result;
use pitwheel::{Context, State};
use pitwheel_proto::v1;
use pitwheel_server::Options;
use pitwheel_testkit::{Http, TestDb, Work, start_worker, wait_until, worker};
use serde_json::json;
use tonic::Code;

use crate::support::{Node, stream_request};

async fn quiet_node(db: &TestDb, lease: Duration) -> Result<Node> {
    let mut options = Options::default();
    options.lease = lease;
    options.serve_workers = false;
    Node::start_with(db.pitwheel(), options, "127.0.0.1:0".parse()?).await
}

#[tokio::test]
async fn it_opens_no_streams_and_answers_everything_else() -> Result<()> {
    let db = TestDb::new().await?;
    let node = quiet_node(&db, Duration::from_secs(30)).await?;
    let http = Http::new(node.address);
    let enqueued = http.post("/api/v1/jobs", &json!({ "jobs": [{ "kind": "work" }] })).await?;
    assert_eq!(enqueued.status, 201, "{}", enqueued.text);
    let id = enqueued.json()?["jobs"][0]["id"].as_i64().unwrap_or_default();
    let mut workers = node.workers().await?;
    for request in [stream_request(1), v1::StreamJobsRequest { job_id: Some(id), ..stream_request(1) }] {
        let refused = workers.stream_jobs(request).await.expect_err("it serves no workers");
        assert_eq!(refused.code(), Code::Unavailable);
        assert!(refused.message().contains("use another node"), "{refused}");
    }
    assert_eq!(db.count("select count(*) from pitwheel.worker").await?, 0);
    assert_eq!(http.get("/readyz").await?.status, 200);
    // What is running elsewhere can be reported here.
    let other = Node::start(db.pitwheel(), Duration::from_secs(30)).await?;
    let mut stream = other.stream(1).await?;
    let job = stream.jobs().await?.remove(0);
    stream.client = node.workers().await?;
    assert_eq!(stream.complete(&job).await?, v1::Written::Yes);
    assert_eq!(db.state(id).await?, Some(State::Done));
    drop(stream);
    other.stop().await?;
    node.stop().await
}

/// A node with the same lease sweeps twenty times in it.
#[tokio::test]
async fn it_does_no_maintenance() -> Result<()> {
    let db = TestDb::new().await?;
    db.job().insert().await?;
    let lost = db.claim_one().await?;
    db.expire_holder(&lost).await?;
    db.client().await?.execute("select pitwheel.enqueue('test', lane => '\"a\"')", &[]).await?;
    let ticks = "select count(*) from pitwheel.sweep_tick where ticked_at > now() - interval '1 day'";
    let before = db.count(ticks).await?;
    let lease = Duration::from_millis(500);
    let quiet = quiet_node(&db, lease).await?;
    tokio::time::sleep(3 * lease).await; // in which another node would sweep and promote
    assert_eq!(db.state(lost.claim.id).await?, Some(State::Running), "it does not sweep");
    assert_eq!(db.count("select count(*) from pitwheel.lane_check").await?, 1, "it does not promote");
    assert_eq!(db.count(ticks).await?, before);
    let node = Node::start(db.pitwheel(), lease).await?;
    wait_until("another node does", async || {
        let promoted = db.count("select count(*) from pitwheel.lane_check").await? == 0;
        Ok(promoted && db.state(lost.claim.id).await? == Some(State::Waiting))
    })
    .await?;
    node.stop().await?;
    quiet.stop().await
}

#[tokio::test]
async fn a_job_that_no_live_worker_takes_stays_and_shows_as_such() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), Duration::from_secs(30)).await?;
    let http = Http::new(node.address);
    let done = async |_: Work, _: Context| Ok::<(), String>(());
    let running = start_worker(worker(db.pitwheel()).handle(done));
    let known = db.pitwheel().enqueue(pitwheel_testkit::work(1)).await?.id;
    let unknown = db.job().kind("unknown").lane("\"a\"").insert().await?;
    let blocked = db.job().kind("unknown").lane("\"a\"").insert().await?;
    wait_until("the other job is done", async || Ok(db.state(known).await? == Some(State::Done))).await?;
    wait_until("the lane has a head", async || Ok(db.state(unknown).await? == Some(State::Waiting))).await?;

    let unserved = |ids: &[i64], jobs: &serde_json::Value| {
        let all = jobs["jobs"].as_array().cloned().unwrap_or_default();
        ids.iter().all(|id| all.iter().any(|job| job["id"] == json!(id) && job["unserved"] == json!(true)))
    };
    let listed = http.get("/api/v1/jobs").await?.json()?;
    assert!(unserved(&[unknown, blocked], &listed) && !unserved(&[known], &listed), "{listed}");
    let in_lane = http.get("/api/v1/lanes/jobs?lane=%22a%22").await?.json()?;
    assert!(unserved(&[unknown, blocked], &in_lane), "{in_lane}");
    let shown = http.get(&format!("/api/v1/jobs/{unknown}")).await?.json()?;
    assert_eq!(
        (&shown["unserved"], &shown["state"], &shown["attempt"]),
        (&json!(true), &json!("waiting"), &json!(0))
    );
    let get = async |job_id: i64| -> Result<bool> {
        let job = node.jobs().await?.get_job(v1::GetJobRequest { job_id }).await?.into_inner().job;
        Ok(job.is_some_and(|job| job.unserved))
    };
    assert!(get(unknown).await? && !get(known).await?);

    // A quiet worker takes nothing, and one that takes the kind changes the answer.
    let mut takes = stream_request(1);
    takes.kinds = vec!["unknown".into()];
    takes.queues = vec!["elsewhere".into()];
    let stream = support::WorkerStream::open_with(node.workers().await?, takes).await?;
    assert!(!get(unknown).await?);
    db.pitwheel().command_worker(stream.worker_id, pitwheel::WorkerCommand::Quiet).await?;
    assert!(get(unknown).await?);
    drop(stream);
    running.stop().await?;
    node.stop().await
}

#[tokio::test]
async fn the_partitions_of_the_history_exist_when_a_node_without_workers_serves() -> Result<()> {
    let db = TestDb::new().await?;
    let days = "select count(*) from pg_class where relname ~ '^job_history_[0-9]{8}$' and relkind = 'r'";
    assert_eq!(db.count(days).await?, 8, "today and the coming week");
    let drop_all = "do $$ declare day regclass; begin
        for day in select oid from pg_class where relname ~ '^job_history_[0-9]{8}$' and relkind = 'r' loop
            execute format('drop table %s', day);
        end loop;
    end $$";
    db.client().await?.batch_execute(drop_all).await?;
    assert_eq!(db.count(days).await?, 0);
    let node = quiet_node(&db, Duration::from_secs(30)).await?;
    assert_eq!(Http::new(node.address).get("/healthz").await?.status, 200);
    assert_eq!(db.count(days).await?, 8);
    node.stop().await
}
