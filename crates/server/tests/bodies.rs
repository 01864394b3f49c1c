//! Bodies of requests: who may send one, how large it is, and how long it takes.

mod support;

use std::future::poll_fn;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use futures_util::{StreamExt, stream};
use pitwheel::Role;
use pitwheel_proto::v1;
use pitwheel_server::Options;
use pitwheel_testkit::{Http, TestDb, WAIT_MAX, wait_until};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::client::Grpc;
use tonic::codegen::Service;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Code, Request, Status};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_prost::ProstCodec;
use tonic_prost::prost::Message;

use crate::support::{Node, stream_request};

const MIB: usize = 1024 * 1024;
/// Far less than the deadline of a body.
const AT_ONCE: Duration = Duration::from_secs(4);

async fn start_with_tokens(db: &TestDb) -> Result<Node> {
    let mut options = Options::default();
    options.require_tokens = true;
    Node::start_with(db.pitwheel(), options, "127.0.0.1:0".parse()?).await
}

async fn secret(db: &TestDb, role: Role) -> Result<String> {
    Ok(db.pitwheel().create_token(role.as_str(), role, None).await?.1)
}

/// A request whose head was sent, and the first bytes of its body.
struct HalfSent(TcpStream);

impl HalfSent {
    /// By hand: no client library leaves a body unfinished.
    async fn new(node: &Node, secret: &str, declared: usize, sent: usize) -> Result<HalfSent> {
        HalfSent::of(node, "/api/v1/jobs", secret, (declared, &vec![b' '; sent])).await
    }

    /// The same for another path: the declared length of the body, and what is sent of it.
    async fn of(node: &Node, path: &str, secret: &str, (declared, sent): (usize, &[u8])) -> Result<HalfSent> {
        let mut socket = TcpStream::connect(node.address).await?;
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {secret}\r\n\
             content-type: application/json\r\ncontent-length: {declared}\r\n\r\n"
        );
        socket.write_all(head.as_bytes()).await?;
        socket.write_all(sent).await?;
        Ok(HalfSent(socket))
    }

    async fn status(mut self) -> Result<u16> {
        let mut line = [0; 12];
        timeout(WAIT_MAX, self.0.read_exact(&mut line)).await??;
        Ok(std::str::from_utf8(&line[9..])?.parse()?)
    }
}

/// A message that is sent at the end of the wait.
fn after<M>(wait: &CancellationToken, message: M) -> impl futures_util::Stream<Item = M> + use<M> {
    let ended = wait.clone().cancelled_owned();
    stream::once(async move {
        ended.await;
        message
    })
}

/// Calls Enqueue with these messages, each sent as soon as it is there.
async fn enqueue(
    node: &Node,
    secret: &str,
    jobs: impl futures_util::Stream<Item = v1::EnqueueRequest> + Send + 'static,
) -> Result<Status> {
    call::<_, v1::EnqueueResponse>(node, secret, "/pitwheel.v1.JobService/Enqueue", jobs).await
}

/// Calls a method with these messages. Returns why it was refused.
async fn call<M, R>(
    node: &Node,
    secret: &str,
    path: &'static str,
    messages: impl futures_util::Stream<Item = M> + Send + 'static,
) -> Result<Status>
where
    M: Message + Send + Sync + 'static,
    R: Message + Default + Send + Sync + 'static,
{
    let mut client = Grpc::new(tonic::transport::Endpoint::new(node.url())?.connect().await?);
    client.ready().await?;
    let mut request = Request::new(messages);
    request.metadata_mut().insert("authorization", format!("Bearer {secret}").parse()?);
    let codec = ProstCodec::<M, R>::default();
    let answer =
        timeout(WAIT_MAX, client.client_streaming(request, PathAndQuery::from_static(path), codec)).await?;
    Ok(answer.map(drop).expect_err("refused"))
}

#[tokio::test]
async fn a_caller_who_may_not_enqueue_is_refused_before_the_body() -> Result<()> {
    let db = TestDb::new().await?;
    let node = start_with_tokens(&db).await?;
    let viewer = secret(&db, Role::Viewer).await?;
    let started = Instant::now();
    assert_eq!(HalfSent::new(&node, &viewer, 3 * MIB, 0).await?.status().await?, 403);
    let status = enqueue(&node, &viewer, stream::pending()).await?;
    assert_eq!(status.code(), Code::PermissionDenied, "{status}");
    assert!(started.elapsed() < AT_ONCE, "no body was waited for: {:?}", started.elapsed());
    let job = v1::NewJob { payload: "x".repeat(31 * MIB), ..v1::NewJob::default() };
    let large = stream::once(async { v1::EnqueueRequest { jobs: vec![job] } });
    assert_eq!(enqueue(&node, &viewer, large).await?.code(), Code::PermissionDenied);
    node.stop().await
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_before_it_is_read() -> Result<()> {
    let db = TestDb::new().await?;
    let node = start_with_tokens(&db).await?;
    let producer = secret(&db, Role::Producer).await?;
    assert_eq!(HalfSent::new(&node, &producer, 5 * MIB, 0).await?.status().await?, 413);
    let jobs =
        vec![v1::NewJob { kind: "work".into(), payload: "1".repeat(200_000), ..v1::NewJob::default() }; 30];
    let large = stream::once(async { v1::EnqueueRequest { jobs } });
    let status = enqueue(&node, &producer, large).await?;
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    assert!(status.message().contains("smaller batches"), "{status}");
    node.stop().await
}

/// The status of a call to Enqueue with this body, whose length stands in its header.
async fn enqueue_body(node: &Node, secret: &str, body: Vec<u8>) -> Result<Code> {
    let mut channel = tonic::transport::Endpoint::new(node.url())?.connect().await?;
    let request = tonic::codegen::http::Request::post("/pitwheel.v1.JobService/Enqueue")
        .header("authorization", format!("Bearer {secret}"))
        .header("content-type", "application/grpc")
        .header("content-length", body.len())
        .body(tonic::body::Body::new(axum::body::Body::from(body)))?;
    poll_fn(|context| channel.poll_ready(context)).await?;
    let response = timeout(WAIT_MAX, channel.call(request)).await??;
    let status = Status::from_header_map(response.headers());
    Ok(status.map_or(Code::Ok, |status| status.code()))
}

#[tokio::test]
async fn a_body_with_a_second_message_is_refused() -> Result<()> {
    let db = TestDb::new().await?;
    let node = start_with_tokens(&db).await?;
    let producer = secret(&db, Role::Producer).await?;
    // A prefix with the length 8, and one job of the kind `work`.
    let message = [b"\0\0\0\0\x08".as_slice(), b"\x0a\x06\x0a\x04work"].concat();
    assert_eq!(enqueue_body(&node, &producer, message.clone()).await?, Code::Ok);
    // 16,313 empty jobs. Read as a part of the first message, its length of 0x7f7a ends with the tag of a field that is skipped, and
    // its first field is the length of that: 32,624 bytes.
    let hidden =
        [b"\0\0\0\x7f\x7a".as_slice(), b"\xf0\xfe\x01\x80\0", &b"\x0a\0".repeat(16_313), b"\x10\x80\0"];
    for rest in [&hidden.concat(), message.as_slice(), &message[..7], &[0]] {
        let code = enqueue_body(&node, &producer, [&message, rest].concat()).await?;
        assert_eq!(code, Code::InvalidArgument, "{} more bytes", rest.len());
    }
    assert_eq!(enqueue_body(&node, &producer, message[..4].to_vec()).await?, Code::InvalidArgument);
    assert_eq!(db.count("select count(*) from pitwheel.job").await?, 1);
    node.stop().await
}

#[tokio::test]
async fn a_body_that_is_never_completed_is_given_up() -> Result<()> {
    let db = TestDb::new().await?;
    let node = start_with_tokens(&db).await?;
    let producer = secret(&db, Role::Producer).await?;
    let held = HalfSent::new(&node, &producer, 100_000, 99_990).await?;
    let none = enqueue(&node, &producer, stream::iter([]).chain(stream::pending()));
    let (http, grpc) = tokio::join!(held.status(), none);
    assert_eq!(http?, 408);
    assert_eq!(grpc?.code(), Code::DeadlineExceeded);
    node.stop().await
}

#[tokio::test]
async fn a_health_check_that_is_never_completed_is_given_up_at_once() -> Result<()> {
    let db = TestDb::new().await?;
    let node = start_with_tokens(&db).await?;
    let mut client = Grpc::new(tonic::transport::Endpoint::new(node.url())?.connect().await?);
    client.ready().await?;
    let request = Request::new(stream::pending());
    let path = PathAndQuery::from_static("/grpc.health.v1.Health/Check");
    let codec = ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
    let started = Instant::now();
    let answer = timeout(WAIT_MAX, client.client_streaming(request, path, codec)).await?;
    assert_eq!(answer.map(drop).expect_err("given up").code(), Code::DeadlineExceeded);
    assert!(started.elapsed() < AT_ONCE, "{:?}", started.elapsed());
    node.stop().await
}

#[tokio::test]
async fn the_large_bodies_of_one_token_do_not_keep_others_out() -> Result<()> {
    let db = TestDb::new().await?;
    let node = start_with_tokens(&db).await?;
    let (producer, other) = (secret(&db, Role::Producer).await?, secret(&db, Role::Operator).await?);
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(HalfSent::new(&node, &producer, 4 * MIB, 10).await?);
    }
    let fifth = HalfSent::new(&node, &producer, 4 * MIB, 10).await?;
    let started = Instant::now();
    let body = HalfSent::new(&node, &other, 20, 20).await?;
    assert_eq!(body.status().await?, 400, "20 spaces are no JSON");
    assert!(started.elapsed() < AT_ONCE, "another token has room: {:?}", started.elapsed());
    assert_eq!(fifth.status().await?, 429);
    drop(held);
    node.stop().await
}

#[tokio::test]
async fn a_token_that_is_revoked_while_a_body_arrives_can_do_nothing_more() -> Result<()> {
    let db = TestDb::new().await?;
    let node = start_with_tokens(&db).await?;
    let admin = secret(&db, Role::Admin).await?;
    let http = Http::new(node.address).token(&admin);
    assert_eq!(http.get("/api/v1/queues").await?.status, 200, "from now on the server knows the token");
    let token = json!({ "name": "again", "role": "admin" }).to_string();
    let (last, first) = token.as_bytes().split_last().context("a body")?;
    let mut half_sent = HalfSent::of(&node, "/api/v1/tokens", &admin, (token.len(), first)).await?;
    let revoked = CancellationToken::new();
    let job = v1::NewJob { kind: "work".into(), ..v1::NewJob::default() };
    let job = v1::EnqueueRequest { jobs: vec![job] };
    let report = "/pitwheel.v1.WorkerService/ReportResult";
    let stream = "/pitwheel.v1.WorkerService/StreamJobs";
    let refuse = async {
        db.pitwheel().revoke_token("admin").await?;
        wait_until("the server knows", async || Ok(http.get("/api/v1/queues").await?.status == 401)).await?;
        half_sent.0.write_all(&[*last]).await?;
        revoked.cancel();
        half_sent.status().await
    };
    let (http, enqueued, reported, streamed) = tokio::try_join!(
        refuse,
        call::<_, v1::EnqueueResponse>(
            &node,
            &admin,
            "/pitwheel.v1.JobService/Enqueue",
            after(&revoked, job)
        ),
        call::<_, v1::ReportResultResponse>(
            &node,
            &admin,
            report,
            after(&revoked, v1::ReportResultRequest::default())
        ),
        call::<_, v1::StreamJobsResponse>(&node, &admin, stream, after(&revoked, stream_request(1))),
    )?;
    assert_eq!(http, 401);
    for refused in [enqueued, reported, streamed] {
        assert_eq!(refused.code(), Code::Unauthenticated, "{refused}");
    }
    let left = "select (select count(*) from pitwheel.token where name = 'again')
        + (select count(*) from pitwheel.job) + (select count(*) from pitwheel.worker)";
    assert_eq!(db.count(left).await?, 0);
    node.stop().await
}
