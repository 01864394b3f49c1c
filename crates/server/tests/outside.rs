//! Calls that reach a loopback address from outside this machine: pages of other sites, and proxies.

mod support;

use std::time::Duration;

use anyhow::Result;
use pitwheel_proto::v1;
use pitwheel_testkit::{Http, TestDb, WAIT_MAX};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::{Code, Request};

use crate::support::Node;

const LEASE: Duration = Duration::from_secs(30);

/// The status of the answer to a `GET` of the queues. By hand: no client library sends these versions and headers.
async fn status_by_hand(node: &Node, version: &str, headers: &[(&str, &str)]) -> Result<u16> {
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let mut socket = TcpStream::connect(node.address).await?;
    socket.write_all(format!("GET /api/v1/queues {version}\r\n{headers}\r\n").as_bytes()).await?;
    let mut line = [0; 12];
    timeout(WAIT_MAX, socket.read_exact(&mut line)).await??;
    Ok(std::str::from_utf8(&line[9..])?.parse()?)
}

#[tokio::test]
async fn no_content_type_lets_a_page_of_another_site_in() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let token = json!({ "name": "stolen", "role": "admin" }).to_string();
    for content_type in ["application/grpc+json", "application/grpc", "application/json", "text/plain"] {
        let page = Http::new(node.address)
            .header("host", "evil.example")
            .header("origin", "http://evil.example")
            .header("content-type", content_type);
        let response = page.send("POST", "/api/v1/tokens", token.clone()).await?;
        assert_eq!(response.status, 403, "{content_type}: {}", response.text);
    }
    assert_eq!(db.count("select count(*) from pitwheel.token").await?, 0, "no token was created");
    node.stop().await
}

#[tokio::test]
async fn grpc_over_http_1_is_refused() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let http = Http::new(node.address).header("content-type", "application/grpc");
    for path in ["/pitwheel.v1.JobService/Enqueue", "/grpc.health.v1.Health/Check"] {
        let response = http.send("POST", path, vec![0; 5]).await?;
        assert_eq!(response.status, 505, "{path}: {}", response.text);
    }
    node.stop().await
}

#[tokio::test]
async fn a_grpc_call_of_a_page_is_refused_over_http_2_too() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let job = v1::NewJob { kind: "work".into(), ..v1::NewJob::default() };
    let mut request = Request::new(v1::EnqueueRequest { jobs: vec![job] });
    request.metadata_mut().insert("origin", "https://evil.example".parse()?);
    let refused = node.jobs().await?.enqueue(request).await.expect_err("a page sent it");
    assert_eq!(refused.code(), Code::PermissionDenied);
    node.stop().await
}

#[tokio::test]
async fn a_call_through_a_proxy_needs_a_token() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let http = Http::new(node.address);
    for (name, value) in [
        ("x-forwarded-for", "203.0.113.9"),
        ("forwarded", "for=203.0.113.9"),
        ("x-forwarded-proto", "https"),
        ("x-real-ip", "203.0.113.9"),
        ("via", "1.1 proxy"),
        ("x-envoy-external-address", "203.0.113.9"),
        ("x-original-forwarded-for", "203.0.113.9"),
        ("cdn-loop", "cloudflare"),
        ("fastly-client-ip", "203.0.113.9"),
        ("fly-client-ip", "203.0.113.9"),
    ] {
        assert_eq!(http.header(name, value).get("/api/v1/queues").await?.status, 401, "{name}");
        let mut request = Request::new(v1::GetJobRequest { job_id: 1 });
        request.metadata_mut().insert(name, value.parse()?);
        let refused = node.jobs().await?.get_job(request).await.expect_err("no token");
        assert_eq!(refused.code(), Code::Unauthenticated, "{name}");
    }
    assert_eq!(http.get("/api/v1/queues").await?.status, 200, "a program on this machine needs none");
    assert_eq!(http.header("x-forwarded-for", "203.0.113.9").get("/healthz").await?.status, 200);
    node.stop().await
}

/// What nginx sends by default, whoever its client is.
#[tokio::test]
async fn a_call_over_http_1_0_needs_a_token() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let host = node.address.to_string();
    let headers = [("host", &*host), ("connection", "close")];
    assert_eq!(status_by_hand(&node, "HTTP/1.0", &headers).await?, 401);
    assert_eq!(status_by_hand(&node, "HTTP/1.1", &headers).await?, 200);
    let secret = db.pitwheel().create_token("viewer", pitwheel::Role::Viewer, None).await?.1;
    let bearer = format!("Bearer {secret}");
    let with_token = [("host", &*host), ("authorization", &*bearer)];
    assert_eq!(status_by_hand(&node, "HTTP/1.0", &with_token).await?, 200);
    node.stop().await
}

#[tokio::test]
async fn a_header_that_is_sent_twice_hides_no_other_site() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let (host, origin) = (node.address.to_string(), node.url());
    for (name, own, foreign) in [
        ("host", &*host, "evil.example"),
        ("origin", &*origin, "http://evil.example"),
        ("sec-fetch-site", "same-origin", "cross-site"),
    ] {
        let status = async |first, second| {
            let headers = [("host", &*host), (name, first), (name, second)];
            status_by_hand(&node, "HTTP/1.1", &headers).await
        };
        assert_eq!(status(own, own).await?, 200, "{name}");
        assert_eq!(status(own, foreign).await?, 403, "{name}");
        assert_eq!(status(foreign, own).await?, 403, "{name}");
    }
    node.stop().await
}
