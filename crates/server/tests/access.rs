//! Which caller may do what, over gRPC and over HTTP.

mod support;

use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use pitwheel::{Context, Role, Worker};
use pitwheel_proto::v1::job_service_client::JobServiceClient;
use pitwheel_proto::{ERROR_CODE_HEADER, v1};
use pitwheel_server::{Options, Server};
use pitwheel_testkit::{Http, TestDb, WAIT_MAX, Work, start_worker, wait_until};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::{Code, Request, Status, Streaming};

use crate::support::{Node, claim_of, next_assignments, next_welcome, stream_request};

/// How soon a stream ends whose token is no longer valid: two seconds, and two more for a slow machine.
const SOON: Duration = Duration::from_secs(4);

/// A node that requires a token from every caller.
async fn start_with_tokens(db: &TestDb) -> Result<Node> {
    let mut options = Options::default();
    options.require_tokens = true;
    Node::start_with(db.pitwheel(), options, "127.0.0.1:0".parse()?).await
}

async fn secret(db: &TestDb, name: &str, role: Role) -> Result<String> {
    Ok(db.pitwheel().create_token(name, role, None).await?.1)
}

fn with_token<T>(message: T, secret: &str) -> Result<Request<T>> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", format!("Bearer {secret}").parse()?);
    Ok(request)
}

#[tokio::test]
async fn every_role_may_do_what_it_is_for_and_no_more() -> Result<()> {
    let db = TestDb::new().await?;
    let node = start_with_tokens(&db).await?;
    let id = db.job().insert().await?;
    let job = json!({ "jobs": [{ "kind": "work" }] });
    let show = format!("/api/v1/jobs/{id}");
    // The request, and whether each role may send it: viewer, operator, admin, worker, producer.
    let calls: [(&str, &str, Value, [bool; 5]); 13] = [
        ("GET", "/api/v1/jobs", Value::Null, [true, true, true, false, false]),
        ("GET", "/metrics", Value::Null, [true, true, true, false, false]),
        ("GET", "/api/v1/events?jobs=x", Value::Null, [true, true, true, true, true]),
        ("GET", &show, Value::Null, [true, true, true, true, true]),
        ("POST", "/api/v1/jobs", job, [false, true, true, true, true]),
        ("POST", "/api/v1/jobs/retry", json!({ "ids": [1] }), [false, true, true, false, false]),
        ("POST", "/api/v1/jobs/4711/recover", Value::Null, [false, true, true, false, false]),
        ("POST", "/api/v1/jobs/4711/claim", json!({ "worker_id": 1 }), [false, true, true, false, false]),
        ("GET", "/api/v1/lanes/current?lane=%22a%22", Value::Null, [true, true, true, false, false]),
        ("POST", "/api/v1/queues/q/pause", Value::Null, [false, true, true, false, false]),
        ("POST", "/api/v1/workers/1/quiet", Value::Null, [false, true, true, false, false]),
        ("PUT", "/api/v1/kinds/k", json!({ "redacted": true }), [false, false, true, false, false]),
        ("GET", "/api/v1/tokens", Value::Null, [false, false, true, false, false]),
    ];
    for (at, role) in Role::ALL.into_iter().enumerate() {
        let secret = secret(&db, role.as_str(), role).await?;
        let http = Http::new(node.address).token(&secret);
        for (method, path, body, allowed) in &calls {
            let status = http.json(method, path, body).await?.status;
            let refused = status == 403;
            assert_eq!(refused, !allowed[at], "{} {method} {path}: {status}", role.as_str());
            assert_ne!(status, 401);
        }
        let mut workers = node.workers().await?;
        let report = v1::ReportResultRequest { results: Vec::new() };
        let code = workers
            .report_result(with_token(report, &secret)?)
            .await
            .expect_err("the report is empty")
            .code();
        let may_work = matches!(role, Role::Worker | Role::Admin);
        assert_eq!(code == Code::PermissionDenied, !may_work, "{}: {code:?}", role.as_str());
        let claim = v1::StreamJobsRequest { job_id: Some(4711), ..stream_request(1) };
        let code =
            workers.stream_jobs(with_token(claim, &secret)?).await.expect_err("there is no such job").code();
        let expected = if may_work { Code::NotFound } else { Code::PermissionDenied };
        assert_eq!(code, expected, "{}", role.as_str());
        let cancel = v1::CancelJobRequest { job_id: 4711 };
        let code = node
            .jobs()
            .await?
            .cancel_job(with_token(cancel, &secret)?)
            .await
            .expect_err("no such job")
            .code();
        let may_cancel = matches!(role, Role::Operator | Role::Admin);
        assert_eq!(code == Code::PermissionDenied, !may_cancel, "{}: {code:?}", role.as_str());
    }
    node.stop().await
}

#[tokio::test]
async fn a_caller_without_a_valid_token_is_refused() -> Result<()> {
    let db = TestDb::new().await?;
    let node = start_with_tokens(&db).await?;
    let soon = SystemTime::now() + Duration::from_millis(500);
    let (_, expiring) = db.pitwheel().create_token("short", Role::Viewer, Some(soon)).await?;
    let good = secret(&db, "good", Role::Viewer).await?;
    let http = Http::new(node.address);
    let status = async |http: &Http| anyhow::Ok(http.get("/api/v1/queues").await?.status);
    assert_eq!(status(&http.token(&good)).await?, 200);
    assert_eq!(http.get("/healthz").await?.status, 200, "health needs no token");
    let refused = [
        http.clone(),
        http.token("pitwheel_0000"),
        http.header("authorization", "Basic YTpi"),
        http.token(""),
    ];
    for http in &refused {
        let response = http.get("/api/v1/queues").await?;
        assert_eq!((response.status, response.content_type.as_str()), (401, "application/problem+json"));
        assert_eq!(http.get("/metrics").await?.status, 401);
    }
    let get = v1::GetJobRequest { job_id: 1 };
    let code = node.jobs().await?.get_job(get).await.expect_err("no token").code();
    assert_eq!(code, Code::Unauthenticated);
    wait_until("the other token has expired", async || Ok(status(&http.token(&expiring)).await? == 401))
        .await?;
    db.pitwheel().revoke_token("good").await?;
    wait_until("the token is revoked", async || Ok(status(&http.token(&good)).await? == 401)).await?;
    node.stop().await
}

/// Opens the stream of a worker.
async fn open_stream(node: &Node, secret: &str) -> Result<Streaming<v1::StreamJobsResponse>> {
    let mut client = node.workers().await?;
    let mut messages = client.stream_jobs(with_token(stream_request(1), secret)?).await?.into_inner();
    next_welcome(&mut messages).await?;
    Ok(messages)
}

/// Waits until a stream without jobs has ended, at most so long.
async fn ended(mut messages: Streaming<v1::StreamJobsResponse>, limit: Duration) -> Result<()> {
    let ended = timeout(limit, messages.message()).await.context("the stream goes on")?;
    assert_eq!(ended.expect_err("nothing was due").code(), Code::Aborted);
    Ok(())
}

#[tokio::test]
async fn a_token_that_is_no_longer_valid_loses_its_streams() -> Result<()> {
    let db = TestDb::new().await?;
    let node = start_with_tokens(&db).await?;
    let revoked = secret(&db, "fleet", Role::Worker).await?;
    // Long enough to open a stream with it.
    let expires_at = SystemTime::now() + Duration::from_secs(8);
    let expiring = db.pitwheel().create_token("short", Role::Worker, Some(expires_at)).await?.1;
    let of_revoked = open_stream(&node, &revoked).await?;
    let of_expiring = open_stream(&node, &expiring).await?;
    db.pitwheel().revoke_token("fleet").await?;
    ended(of_revoked, SOON).await.context("revoked")?;
    let again = open_stream(&node, &revoked).await.expect_err("the token is revoked");
    assert_eq!(again.downcast::<Status>()?.code(), Code::Unauthenticated);
    ended(of_expiring, expires_at.duration_since(SystemTime::now())? + SOON).await.context("expired")?;
    node.stop().await
}

#[tokio::test]
async fn a_token_expires_although_the_tokens_cannot_be_read() -> Result<()> {
    let db = TestDb::new().await?;
    let node = start_with_tokens(&db).await?;
    let id = db.job().insert().await?;
    // Long enough to open two streams with it.
    let lifetime = Duration::from_secs(8);
    let expires_at = SystemTime::now() + lifetime;
    let secret = db.pitwheel().create_token("short", Role::Worker, Some(expires_at)).await?.1;
    let messages = open_stream(&node, &secret).await?;
    let http = Http::new(node.address).token(&secret);
    let mut events = http.events(&format!("/api/v1/events?jobs={id}")).await?;
    assert_eq!(events.next().await?.0, "job");
    let mut other = db.client().await?;
    let lock = other.transaction().await?;
    lock.batch_execute("lock table pitwheel.token in access exclusive mode").await?;

    let limit = expires_at.duration_since(SystemTime::now())? + SOON;
    let of_events = async { while events.next().await.is_ok() {} };
    let (of_worker, of_events) = tokio::join!(ended(messages, limit), timeout(limit, of_events));
    of_worker?;
    of_events.context("the events go on")?;
    assert!(SystemTime::now() >= expires_at, "it was valid until then");
    assert_eq!(http.get("/api/v1/jobs/1").await?.status, 401);
    lock.rollback().await?;
    node.stop().await
}

#[tokio::test]
async fn a_remote_worker_sends_its_token() -> Result<()> {
    let db = TestDb::new().await?;
    let node = start_with_tokens(&db).await?;
    let secret = secret(&db, "fleet", Role::Worker).await?;
    let handler = async |work: Work, context: Context| match work.n {
        0 => Ok(()),
        n => context.enqueue(&Work { n: n - 1 }).await.map(drop),
    };
    let worker = || Worker::remote(&node.url()).queue("default", 2).handle(handler);
    let running = start_worker(worker().token(&secret));
    db.pitwheel().enqueue(&Work { n: 2 }).await?;
    wait_until(
        "all are done",
        async || Ok(db.count("select count(*) from pitwheel.job_history").await? == 3),
    )
    .await?;
    running.stop().await?;
    let refused = worker().token("wrong").run(std::future::pending()).await;
    assert!(
        matches!(refused, Err(pitwheel::Error::Invalid(_))),
        "a refused token is not retried: {refused:?}"
    );
    node.stop().await
}

#[tokio::test]
async fn a_worker_cannot_act_for_workers_of_another_token() -> Result<()> {
    let db = TestDb::new().await?;
    let (one, two) = (start_with_tokens(&db).await?, start_with_tokens(&db).await?);
    let (ours, theirs) =
        (secret(&db, "ours", Role::Worker).await?, secret(&db, "theirs", Role::Worker).await?);
    let mut ids = Vec::new();
    let mut held = Vec::new();
    let mut streams = Vec::new();
    for secret in [&ours, &theirs] {
        db.job().kind("work").insert().await?;
        let request = with_token(stream_request(1), secret)?;
        let mut messages = one.workers().await?.stream_jobs(request).await?.into_inner();
        ids.push(next_welcome(&mut messages).await?.worker_id);
        held.push(claim_of(&next_assignments(&mut messages).await?[0]));
        streams.push(messages);
    }
    // Through a node that must query the database, and through the node that has the streams.
    for node in [&two, &one] {
        let mut client = node.workers().await?;
        let heartbeat = v1::HeartbeatRequest { worker_ids: ids.clone(), ended: Vec::new() };
        let response = client.heartbeat(with_token(heartbeat, &ours)?).await?.into_inner();
        assert_eq!(response.dead_worker_ids, [ids[1]], "ids are checked one by one");
        let ended = v1::EndedStream { worker_id: ids[1], holding: Vec::new() };
        let heartbeat = v1::HeartbeatRequest { worker_ids: Vec::new(), ended: vec![ended] };
        client.heartbeat(with_token(heartbeat, &ours)?).await?;
        assert_eq!(
            db.count("select count(*) from pitwheel.job where holder is not null").await?,
            2,
            "nothing was released"
        );
    }
    let results = held.iter().map(|claim| v1::Result {
        claim: Some(*claim),
        outcome: Some(v1::result::Outcome::Complete(v1::Complete::default())),
        ..v1::Result::default()
    });
    let report = v1::ReportResultRequest { results: results.collect() };
    let response = two.workers().await?.report_result(with_token(report.clone(), &ours)?).await?.into_inner();
    assert_eq!(response.written, [i32::from(v1::Written::Yes), i32::from(v1::Written::Lost)]);
    let repeated = two.workers().await?.report_result(with_token(report, &ours)?).await?.into_inner();
    assert_eq!(repeated.written, [i32::from(v1::Written::Already), i32::from(v1::Written::Lost)]);
    // A caller cannot name its own worker for the job of another token, nor leave the name out.
    for worker_id in [ids[0], 0] {
        let claim = Some(v1::Claim { worker_id, ..held[1] });
        let outcome = Some(v1::result::Outcome::Release(v1::Release {}));
        let results = vec![v1::Result { claim, outcome, ..v1::Result::default() }];
        let report = with_token(v1::ReportResultRequest { results }, &ours)?;
        let response = two.workers().await?.report_result(report).await?.into_inner();
        assert_eq!(response.written, [i32::from(v1::Written::Lost)]);
    }
    assert_eq!(
        db.count("select count(*) from pitwheel.job").await?,
        1,
        "the job of the other token still runs"
    );
    drop(streams);
    one.stop().await?;
    two.stop().await
}

#[tokio::test]
async fn payloads_of_a_redacted_kind_are_hidden_from_roles_that_may_only_read() -> Result<()> {
    let db = TestDb::new().await?;
    let node = start_with_tokens(&db).await?;
    let id = db.job().kind("work").payload(r#"{"secret":"s3cr3t"}"#).insert().await?;
    let admin = Http::new(node.address).token(&secret(&db, "admin", Role::Admin).await?);
    assert_eq!(admin.json("PUT", "/api/v1/kinds/work", &json!({ "redacted": true })).await?.status, 200);
    let path = format!("/api/v1/jobs/{id}");
    for (role, sees) in
        [(Role::Viewer, false), (Role::Producer, false), (Role::Worker, false), (Role::Operator, true)]
    {
        let secret = secret(&db, role.as_str(), role).await?;
        let shown = Http::new(node.address).token(&secret).get(&path).await?;
        assert_eq!(shown.text.contains("s3cr3t"), sees, "{}: {}", role.as_str(), shown.text);
        assert_eq!(shown.json()?["redacted"], !sees);
        let mut client = JobServiceClient::connect(node.url()).await?;
        let job =
            client.get_job(with_token(v1::GetJobRequest { job_id: id }, &secret)?).await?.into_inner().job;
        assert_eq!(job.context("no job")?.payload.contains("s3cr3t"), sees, "{}", role.as_str());
    }
    node.stop().await
}

#[tokio::test]
async fn pages_of_other_sites_may_not_use_a_server_on_loopback() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), Duration::from_secs(30)).await?;
    let http = Http::new(node.address);
    let own = http.header("origin", &node.url()).header("sec-fetch-site", "same-origin");
    assert_eq!(own.get("/api/v1/queues").await?.status, 200);
    for (name, value) in [
        ("origin", "http://evil.example"),
        ("origin", "null"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
    ] {
        let foreign = http.header(name, value);
        let status = foreign.post("/api/v1/queues/*/pause", &Value::Null).await?.status;
        assert_eq!(status, 403, "{name}: {value}");
    }
    // DNS rebinding: a name of another site that resolves to this machine.
    let rebound = http.header("host", "evil.example");
    assert_eq!(rebound.get("/api/v1/queues").await?.status, 403);
    assert_eq!(db.count("select count(*) from pitwheel.queue").await?, 0, "nothing was paused");
    node.stop().await
}

#[tokio::test]
async fn a_server_reachable_from_other_machines_starts_only_if_a_token_exists() -> Result<()> {
    let db = TestDb::new().await?;
    let open = async || TcpListener::bind("0.0.0.0:0").await;
    let never = std::future::pending();
    let refused = Server::new(db.pitwheel()).run(open().await?, never).await;
    assert!(matches!(refused, Err(pitwheel_server::Error::Open(_))));
    let secret = secret(&db, "admin", Role::Admin).await?;
    let node = Node::start_with(db.pitwheel(), Options::default(), "0.0.0.0:0".parse()?).await?;
    let http = Http::new(([127, 0, 0, 1], node.address.port()).into());
    assert_eq!(http.get("/api/v1/queues").await?.status, 401, "a caller on this machine needs a token too");
    assert_eq!(http.token(&secret).get("/api/v1/queues").await?.status, 200);
    node.stop().await
}

#[tokio::test]
async fn streams_that_are_opened_at_once_do_not_exceed_the_limit_of_a_token() -> Result<()> {
    const STREAMS_MAX: usize = 2000;
    let db = TestDb::new().await?;
    let mut options = Options::default();
    options.require_tokens = true;
    // So long that no worker needs a heartbeat here.
    options.lease = Duration::from_secs(3600);
    let node = Node::start_with(db.pitwheel(), options, "127.0.0.1:0".parse()?).await?;
    let worker = secret(&db, "worker", Role::Worker).await?;
    let mut opening = JoinSet::new();
    for _ in 0..3 {
        // One connection has room for fewer calls than one token.
        let client = node.workers().await?;
        for _ in 0..(STREAMS_MAX + 100) / 3 {
            let (mut client, request) = (client.clone(), with_token(stream_request(1), &worker)?);
            opening.spawn(async move { client.stream_jobs(request).await });
        }
    }
    let opened = timeout(2 * WAIT_MAX, opening.join_all()).await?;
    let (open, refused): (Vec<_>, Vec<_>) = opened.into_iter().partition(Result::is_ok);
    assert_eq!((open.len(), refused.len()), (STREAMS_MAX, 100));
    let refusal = refused.into_iter().find_map(Result::err).context("none was refused")?;
    assert_eq!(refusal.code(), Code::ResourceExhausted, "{refusal}");
    let code = refusal.metadata().get(ERROR_CODE_HEADER).context("no code of the error")?;
    assert_eq!(code.to_str()?, "busy");
    drop(open);
    node.stop().await
}
