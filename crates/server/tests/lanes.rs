//! Lanes and recovery over HTTP and gRPC.

mod support;

use std::time::Duration;

use anyhow::{Context as _, Result};
use pitwheel::Settled;
use pitwheel_testkit::{Http, TestDb};
use serde_json::{Value, json};

use crate::support::Node;

const LEASE: Duration = Duration::from_secs(30);
/// `["tenant", 7, null]` in a URL.
const LANE: &str = "%5B%22tenant%22,7,null%5D";

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

#[tokio::test]
async fn jobs_of_a_lane_are_enqueued_listed_and_current() -> Result<()> {
    let (db, node, http) = serve().await?;
    let job = json!({ "kind": "test", "lane": ["tenant", 7, null] });
    let response = http.post("/api/v1/jobs", &json!({ "jobs": [job, job] })).await?;
    assert_eq!(response.status, 201, "{}", response.text);
    let jobs = response.json()?["jobs"].clone();
    let (first, second) = (&jobs[0]["id"], &jobs[1]["id"]);
    let current = format!("/api/v1/lanes/current?lane={LANE}");
    assert_eq!(get(&http, &current).await?, json!({ "id": null, "job": null }));
    let blocked = get(&http, "/api/v1/jobs?state=blocked").await?;
    assert_eq!(
        (&blocked["jobs"][0]["id"], &blocked["jobs"][0]["lane"]),
        (second, &json!(["tenant", 7, null]))
    );
    assert_eq!(get(&http, "/api/v1/queues").await?["queues"][0]["blocked"], 1);
    let metrics = http.get("/metrics").await?.text;
    assert!(metrics.contains(r#"pitwheel_jobs{queue="default",state="blocked"} 1"#), "{metrics}");

    let claimed = db.claim_one().await?;
    assert_eq!(get(&http, &current).await?["id"], *first);
    assert_eq!(db.complete(&claimed).await?, Settled::Written);
    db.claim_one().await?;
    assert_eq!(get(&http, &current).await?["job"]["id"], *second);
    let listed = get(&http, &format!("/api/v1/lanes/jobs?lane={LANE}")).await?;
    let states: Vec<&Value> =
        listed["jobs"].as_array().context("no list")?.iter().map(|job| &job["state"]).collect();
    assert_eq!(states, ["running", "done"]);
    node.stop().await
}

#[tokio::test]
async fn a_lane_that_is_none_is_refused() -> Result<()> {
    let (_db, node, http) = serve().await?;
    for lane in [json!(7), json!([]), json!([[1]]), json!({}), json!("x".repeat(600))] {
        let response =
            http.post("/api/v1/jobs", &json!({ "jobs": [{ "kind": "test", "lane": lane }] })).await?;
        assert_eq!(response.status, 400, "{}", response.text);
        assert!(response.text.contains("lane"), "{}", response.text);
    }
    for path in ["current?lane=7", "current", "jobs?lane=%5B", "jobs?lane=%22a%22&limit=5000"] {
        assert_eq!(http.get(&format!("/api/v1/lanes/{path}")).await?.status, 400, "{path}");
    }
    node.stop().await
}

#[tokio::test]
async fn a_stale_job_is_recovered_and_no_other() -> Result<()> {
    let (db, node, http) = serve().await?;
    let id = db.job().insert().await?;
    let recover = async |id: i64| http.post(&format!("/api/v1/jobs/{id}/recover"), &json!({})).await;
    assert_eq!(recover(4711).await?.status, 404);
    let waiting = recover(id).await?;
    assert_eq!((waiting.status, &waiting.json()?["title"]), (409, &json!("not_stale")));
    let claimed = db.claim_one().await?;
    assert_eq!(recover(id).await?.status, 409, "its worker has just registered");
    let silent = format!(
        "update pitwheel.worker set lease_until = clock_timestamp() + lease - interval '31 minutes' where id = {}",
        claimed.claim.holder
    );
    db.client().await?.batch_execute(&silent).await?;
    let recovered = recover(id).await?;
    assert_eq!(recovered.status, 200, "{}", recovered.text);
    let job = recovered.json()?;
    assert_eq!((&job["state"], &job["attempt"], &job["id"]), (&json!("waiting"), &json!(0), &json!(id)));
    assert_eq!(get(&http, "/api/v1/audit").await?["changes"][0]["action"], "job.recover");
    node.stop().await
}
