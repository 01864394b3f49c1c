//! Pipelines over HTTP and gRPC.

mod support;

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use pitwheel::{Context, NewPipeline, PipelineState, Role, Verdict, Worker};
use pitwheel_proto::v1;
use pitwheel_proto::v1::pipeline_service_client::PipelineServiceClient;
use pitwheel_server::Options;
use pitwheel_testkit::{Http, TestDb, Work, start_worker, wait_until, work};
use serde_json::{Value, json};

use crate::support::Node;

const LEASE: Duration = Duration::from_secs(30);

async fn serve() -> Result<(TestDb, Node, Http)> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let http = Http::new(node.address);
    Ok((db, node, http))
}

fn import() -> Value {
    json!({ "name": "import", "steps": [
        { "name": "load", "job": { "kind": "test", "payload": { "n": 1 } } },
        { "name": "index", "after": ["load"], "job": { "kind": "test", "delay_ms": 5 } },
    ] })
}

/// A list of so many of these items, and a number behind them.
fn many_and_a_wrong_one(count: usize, item: Value) -> Value {
    let mut list = vec![item; count];
    list.push(json!(5));
    Value::Array(list)
}

async fn ok(http: &Http, path: &str, body: Value) -> Result<Value> {
    let response = http.post(&format!("/api/v1/pipelines{path}"), &body).await?;
    ensure!([200, 201].contains(&response.status), "{path}: {}", response.text);
    response.json()
}

#[tokio::test]
async fn a_pipeline_is_created_shown_cancelled_and_retried() -> Result<()> {
    let (db, node, http) = serve().await?;
    let created = ok(&http, "", import()).await?;
    let id = created["id"].as_i64().context("an id")?;
    assert_eq!(created["counts"], json!({ "live": 1, "waiting": 1 }));
    assert_eq!(created["steps"][1]["after"], json!(["load"]));
    let job = created["steps"][0]["job_id"].as_i64().context("a job")?;
    let shown = http.get(&format!("/api/v1/jobs/{job}")).await?.json()?;
    assert_eq!((&shown["pipeline"], &shown["step"]), (&json!(id), &json!("load")));

    let cancelled = ok(&http, &format!("/{id}/cancel"), json!({})).await?;
    assert_eq!((&cancelled["changed"], &cancelled["pipeline"]["state"]), (&json!(true), &json!("cancelled")));
    assert_eq!(ok(&http, &format!("/{id}/cancel"), json!({})).await?["changed"], json!(false));
    let listed = http.get("/api/v1/pipelines?state=cancelled&name=import").await?.json()?;
    assert_eq!(listed["pipelines"][0]["id"], json!(id));
    assert_eq!(http.get("/api/v1/pipelines?state=done").await?.json()?["pipelines"], json!([]));
    assert_eq!(http.get("/api/v1/pipelines?state=lost").await?.status, 400);
    let audit = db.pitwheel().audit(None, 1).await?;
    assert_eq!((&*audit[0].actor, &*audit[0].action), ("loopback", "pipeline.cancel"));

    let retried = ok(&http, &format!("/{id}/retry"), json!({})).await?;
    assert_eq!(retried["pipeline"]["state"], json!("running"));
    let shown = http.get(&format!("/api/v1/pipelines/{id}")).await?.json()?;
    assert_eq!(shown["counts"], json!({ "live": 1, "waiting": 1 }));
    assert_eq!(http.get("/api/v1/pipelines/99").await?.status, 404);
    assert_eq!(http.post("/api/v1/pipelines/99/retry", &json!({})).await?.status, 404);
    node.stop().await
}

#[tokio::test]
async fn what_cannot_run_is_refused_with_the_reason() -> Result<()> {
    let (db, node, http) = serve().await?;
    for (steps, problem) in [
        (json!([]), "it may have 1 to 1000"),
        (
            json!([{ "name": "a", "after": ["b"], "job": { "kind": "k" } }]),
            "step `a` comes after `b`, which was not added before it",
        ),
        (json!([{ "name": "a", "job": { "kind": "k", "key": "x" } }]), "step `a` has a key"),
        (json!([{ "name": "a", "job": { "kind": "k" }, "color": 1 }]), "color"),
        (json!([{ "name": "a" }]), "job"),
        // The limits hold while the lists are read: what follows is not looked at.
        (many_and_a_wrong_one(1001, json!({ "name": "a", "job": { "kind": "k" } })), "more than 1000 items"),
        (
            json!([{ "name": "a", "after": many_and_a_wrong_one(101, json!("b")), "job": { "kind": "k" } }]),
            "more than 100 items",
        ),
    ] {
        let refused = http.post("/api/v1/pipelines", &json!({ "name": "n", "steps": steps })).await?;
        assert!(refused.status == 400 && refused.text.contains(problem), "{}", refused.text);
    }
    assert_eq!(db.count("select count(*) from pitwheel.pipeline").await?, 0);
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
    assert_eq!(http(&viewer).post("/api/v1/pipelines", &import()).await?.status, 403);
    let created = http(&producer).post("/api/v1/pipelines", &import()).await?;
    assert_eq!(created.status, 201, "{}", created.text);
    let id = created.json()?["id"].to_string();
    let cancel = format!("/api/v1/pipelines/{id}/cancel");
    assert_eq!(http(&producer).post(&cancel, &json!({})).await?.status, 403);
    db.pitwheel().redact("test", true).await?;
    let job = db.claim_one().await?;
    let done = pitwheel::engine::Ending::Done {
        history: pitwheel::History::All,
        ctid: None,
        result: Some("7".into()),
        then: Vec::new(),
    };
    assert_eq!(db.settle(&job, done).await?, pitwheel::Settled::Written);
    let shown = http(&viewer).get(&format!("/api/v1/pipelines/{id}")).await?.json()?;
    assert_eq!((&shown["steps"][0]["state"], &shown["steps"][0]["result"]), (&json!("done"), &json!(null)));
    node.stop().await
}

#[tokio::test]
async fn a_remote_worker_sees_results_and_adds_a_step() -> Result<()> {
    let (db, node, _) = serve().await?;
    let handler = async |job: Work, context: Context| {
        let before: i64 = context.parents().iter().filter_map(|parent| parent.result::<i64>()).sum();
        let done = Verdict::complete_with(&(before + job.n))?;
        Ok::<_, pitwheel::Error>(if job.n == 2 { done.then_step("three", work(3)) } else { done })
    };
    let worker = Worker::remote(&node.url()).queue("default", 5).name("remote");
    let running = start_worker(worker.handle(handler));
    let pipelines = db.pitwheel().pipelines();
    let two = NewPipeline::new("two").step("one", work(1)).step("two", work(2)).after(["one"]);
    let id = pipelines.create(two).await?;
    let done = async || Ok(pipelines.get(id).await?.summary.state == PipelineState::Done);
    wait_until("the pipeline is done", done).await?;
    running.stop().await?;

    let mut client = PipelineServiceClient::connect(node.url()).await?;
    let request = v1::GetPipelineRequest { pipeline_id: id };
    let pipeline = client.get_pipeline(request).await?.into_inner().pipeline.context("a pipeline")?;
    let results: Vec<_> = pipeline.steps.iter().map(|step| (&*step.name, step.result.as_deref())).collect();
    assert_eq!(results, [("one", Some("1")), ("two", Some("3")), ("three", Some("6"))]);
    node.stop().await
}

#[tokio::test]
async fn a_pipeline_is_created_cancelled_and_retried_over_grpc() -> Result<()> {
    let (db, node, _) = serve().await?;
    let mut client = PipelineServiceClient::connect(node.url()).await?;
    let step = |name: &str, after: &[&str]| v1::NewStep {
        name: name.into(),
        job: Some(v1::NewJob { kind: "test".into(), ..v1::NewJob::default() }),
        after: after.iter().map(|&name| name.to_owned()).collect(),
    };
    let request = |steps| v1::CreatePipelineRequest { name: "p".into(), on_failure: "go_on".into(), steps };
    let created = client.create_pipeline(request(vec![step("a", &[]), step("b", &["a"])])).await?;
    let pipeline_id = created.into_inner().pipeline_id;
    assert!(client.cancel_pipeline(v1::CancelPipelineRequest { pipeline_id }).await?.into_inner().changed);
    assert!(client.retry_pipeline(v1::RetryPipelineRequest { pipeline_id }).await?.into_inner().changed);
    let detail = db.pitwheel().pipelines().get(pipeline_id).await?;
    assert_eq!(detail.counts(), [("live", 1), ("waiting", 1)].into());
    let refused = client.create_pipeline(request(vec![step("a", &["a"])])).await;
    assert_eq!(refused.err().map(|status| status.code()), Some(tonic::Code::InvalidArgument));
    let missing = client.get_pipeline(v1::GetPipelineRequest { pipeline_id: 99 }).await;
    assert_eq!(missing.err().map(|status| status.code()), Some(tonic::Code::NotFound));
    node.stop().await
}

#[tokio::test]
async fn what_is_read_of_a_pipeline_is_bounded() -> Result<()> {
    let (db, node, http) = serve().await?;
    let steps = (1..=20).fold(NewPipeline::new("wide"), |wide, n| wide.step(format!("s{n}"), work(n)));
    let id = db.pitwheel().pipelines().create(steps).await?;
    // More than the 4 MiB that a gRPC client takes by default.
    let results = "update pitwheel.step set result = to_json(repeat('x', 260000))";
    db.client().await?.execute(results, &[]).await?;
    let within: Vec<bool> = (1..=20).map(|n| n <= 4).collect();

    let mut client = PipelineServiceClient::connect(node.url()).await?;
    let request = v1::GetPipelineRequest { pipeline_id: id };
    let pipeline = client.get_pipeline(request).await?.into_inner().pipeline.context("a pipeline")?;
    assert_eq!(pipeline.steps.iter().map(|step| step.result.is_some()).collect::<Vec<_>>(), within);
    assert!(pipeline.steps.iter().all(|step| step.result.is_some() != step.result_left_out));

    let shown = http.get(&format!("/api/v1/pipelines/{id}")).await?;
    assert!(shown.text.len() < 1200 * 1024, "{} bytes", shown.text.len());
    let shown = shown.json()?;
    let steps = shown["steps"].as_array().context("steps")?;
    assert_eq!(steps.iter().map(|step| step["result_left_out"] == false).collect::<Vec<_>>(), within);
    assert_eq!(steps.iter().map(|step| step["result"] != Value::Null).collect::<Vec<_>>(), within);
    node.stop().await
}

#[tokio::test]
async fn whether_a_redacted_result_was_left_out_is_hidden() -> Result<()> {
    let db = TestDb::new().await?;
    let mut options = Options::default();
    options.require_tokens = true;
    let node = Node::start_with(db.pitwheel(), options, "127.0.0.1:0".parse()?).await?;
    let steps = (1..=5).fold(NewPipeline::new("wide"), |wide, n| wide.step(format!("s{n}"), work(n)));
    let id = db.pitwheel().pipelines().create(steps).await?;
    let client = db.client().await?;
    client.execute("update pitwheel.step set result = to_json(repeat('x', 260000))", &[]).await?;
    let kind: String = client.query_one("select kind from pitwheel.step limit 1", &[]).await?.get(0);
    db.pitwheel().redact(&kind, true).await?;
    for (role, left_out) in [(Role::Viewer, false), (Role::Operator, true)] {
        let secret = db.pitwheel().create_token(role.as_str(), role, None).await?.1;
        let shown = Http::new(node.address).token(&secret).get(&format!("/api/v1/pipelines/{id}")).await?;
        assert_eq!(shown.json()?["steps"][4]["result_left_out"], json!(left_out), "{role:?}");

        let mut request = tonic::Request::new(v1::GetPipelineRequest { pipeline_id: id });
        request.metadata_mut().insert("authorization", format!("Bearer {secret}").parse()?);
        let mut client = PipelineServiceClient::connect(node.url()).await?;
        let pipeline = client.get_pipeline(request).await?.into_inner().pipeline.context("a pipeline")?;
        assert_eq!(pipeline.steps[4].result_left_out, left_out, "{role:?}");
    }
    node.stop().await
}

#[tokio::test]
async fn a_change_of_a_pipeline_reads_no_steps() -> Result<()> {
    let (db, node, http) = serve().await?;
    let id = ok(&http, "", import()).await?["id"].as_i64().context("an id")?;
    // A step that cannot be read: whoever reads the steps fails.
    let client = db.client().await?;
    client.batch_execute("alter table pitwheel.step drop constraint step_state").await?;
    client.batch_execute("update pitwheel.step set state = 'unreadable' where name = 'index'").await?;
    assert_ne!(http.get(&format!("/api/v1/pipelines/{id}")).await?.status, 200);

    let cancelled = ok(&http, &format!("/{id}/cancel"), json!({})).await?;
    assert_eq!((&cancelled["changed"], &cancelled["pipeline"]["state"]), (&json!(true), &json!("cancelled")));
    let retried = ok(&http, &format!("/{id}/retry"), json!({})).await?;
    assert_eq!((&retried["changed"], &retried["pipeline"]["state"]), (&json!(true), &json!("running")));

    let mut client = PipelineServiceClient::connect(node.url()).await?;
    let request = v1::CancelPipelineRequest { pipeline_id: id };
    assert!(client.cancel_pipeline(request).await?.into_inner().changed);
    let request = v1::RetryPipelineRequest { pipeline_id: id };
    assert!(client.retry_pipeline(request).await?.into_inner().changed);
    node.stop().await
}
