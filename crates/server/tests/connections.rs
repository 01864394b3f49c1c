//! Connections that send nothing are closed, and other clients are still served.

mod support;

use std::time::Duration;

use anyhow::{Context as _, Result};
use futures_util::{StreamExt, stream};
use pitwheel::Role;
use pitwheel_testkit::{TestDb, WAIT_MAX, wait_until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Streaming};
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;

use crate::support::Node;

const LEASE: Duration = Duration::from_secs(30);
/// Health watches of a node.
const WATCHES: usize = 1000;
/// Probes of one connection at a time.
const PROBES: usize = 16;
/// More than the server's limit of reflection streams.
const REFLECTIONS: usize = 101;
/// Reflection streams of one token.
const REFLECTIONS_OF_TOKEN: usize = 25;

/// Waits until the server has closed the connection.
async fn closed(mut socket: TcpStream) -> Result<()> {
    let mut rest = Vec::new();
    // A reset is as good as an end.
    let _ = timeout(WAIT_MAX, socket.read_to_end(&mut rest)).await.context("still open")?;
    Ok(())
}

#[tokio::test]
async fn a_connection_that_sends_no_request_is_closed() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let silent = TcpStream::connect(node.address).await?;
    let mut one_byte = TcpStream::connect(node.address).await?;
    one_byte.write_all(b"P").await?;
    let (silent, one_byte) = tokio::join!(closed(silent), closed(one_byte));
    silent.context("silent")?;
    one_byte.context("one byte")?;
    node.stop().await
}

/// Sends a request over a connection that stays open.
async fn check_health(socket: &mut TcpStream) -> Result<()> {
    socket.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await?;
    let mut answer = Vec::new();
    while !answer.ends_with(br#"{"status":"ok"}"#) {
        anyhow::ensure!(timeout(WAIT_MAX, socket.read_buf(&mut answer)).await?? > 0, "closed");
    }
    Ok(())
}

#[tokio::test]
async fn a_connection_that_sent_a_request_stays_open() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let mut kept = TcpStream::connect(node.address).await?;
    check_health(&mut kept).await?;
    closed(TcpStream::connect(node.address).await?).await?;
    check_health(&mut kept).await?;
    drop(kept);
    node.stop().await
}

#[tokio::test]
async fn a_connection_whose_request_has_too_long_a_head_is_closed() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let new = TcpStream::connect(node.address).await?;
    let mut served = TcpStream::connect(node.address).await?;
    check_health(&mut served).await?;
    for mut socket in [new, served] {
        socket.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nlong: ").await?;
        // The node may close the connection before it has read all of it.
        let _ = socket.write_all(&[b'x'; 100 * 1024]).await;
        closed(socket).await?;
    }
    node.stop().await
}

type HealthWatch = Streaming<HealthCheckResponse>;

/// Opens health watches over a connection of their own, until one is refused.
async fn watch_health(node: &Node) -> Result<(HealthClient<Channel>, Vec<HealthWatch>)> {
    let mut client = HealthClient::new(Endpoint::new(node.url())?.connect().await?);
    let mut watches = Vec::new();
    loop {
        match client.watch(HealthCheckRequest::default()).await {
            Ok(watch) => watches.push(watch.into_inner()),
            Err(refused) => {
                assert_eq!(refused.code(), Code::ResourceExhausted);
                return Ok((client, watches));
            }
        }
        anyhow::ensure!(watches.len() <= WATCHES, "no limit");
    }
}

#[tokio::test]
async fn the_number_of_health_watches_is_limited_per_connection_and_in_all() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let (_, mut watches) = watch_health(&node).await?;
    assert_eq!(watches.len(), PROBES, "one connection leaves some to others");
    let mut client = loop {
        let (client, more) = watch_health(&node).await?;
        let is_last = more.len() < PROBES;
        watches.extend(more);
        if is_last {
            break client;
        }
    };
    assert_eq!(watches.len(), WATCHES);
    let checked = client.check(HealthCheckRequest::default()).await?.into_inner();
    assert_eq!(checked.status, 1, "a check is answered all the same");
    drop(watches);
    wait_until("there is room again", async || {
        Ok(client.clone().watch(HealthCheckRequest::default()).await.is_ok())
    })
    .await?;
    node.stop().await
}

#[tokio::test]
async fn one_token_cannot_take_all_reflection_streams() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let one = db.pitwheel().create_token("one", Role::Viewer, None).await?.1;
    let other = db.pitwheel().create_token("other", Role::Viewer, None).await?.1;
    let client = ServerReflectionClient::new(Endpoint::new(node.url())?.connect().await?);
    let stop = CancellationToken::new();
    let open = async |secret: &str| {
        let stopped = Box::pin(stop.clone().cancelled_owned());
        let mut request = Request::new(stream::pending::<ServerReflectionRequest>().take_until(stopped));
        request.metadata_mut().insert("authorization", format!("Bearer {secret}").parse()?);
        anyhow::Ok(client.clone().server_reflection_info(request).await)
    };
    let mut streams = Vec::new();
    let refused = loop {
        match open(&one).await? {
            Ok(stream) => streams.push(stream),
            Err(refused) => break refused,
        }
    };
    assert_eq!((streams.len(), refused.code()), (REFLECTIONS_OF_TOKEN, Code::ResourceExhausted));
    assert!(open(&other).await?.is_ok(), "another token has room");
    stop.cancel();
    node.stop().await
}

#[tokio::test]
async fn the_number_of_reflection_streams_and_their_messages_are_limited() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let channel = Endpoint::new(node.url())?.connect().await?;
    let mut client = ServerReflectionClient::new(channel);
    let symbol = MessageRequest::FileContainingSymbol("pitwheel.v1.JobService".into());
    let known = ServerReflectionRequest { host: String::new(), message_request: Some(symbol) };
    let stop = CancellationToken::new();
    let until_stopped = |message| {
        let stopped = Box::pin(stop.clone().cancelled_owned());
        stream::iter([message]).chain(stream::pending().take_until(stopped))
    };
    let mut open = Vec::new();
    let refused = loop {
        match client.server_reflection_info(until_stopped(known.clone())).await {
            Ok(answers) => open.push(answers.into_inner()),
            Err(refused) => break refused,
        }
        assert!(open.len() < REFLECTIONS, "no limit");
    };
    assert_eq!(refused.code(), Code::ResourceExhausted);
    for answers in &mut open {
        let answer = timeout(WAIT_MAX, answers.message()).await??;
        assert!(answer.is_some(), "those that are open are answered");
    }
    stop.cancel();
    drop(open);
    wait_until("there is room again", async || {
        let mut client = client.clone();
        Ok(client.server_reflection_info(until_stopped(known.clone())).await.is_ok())
    })
    .await?;
    let long = ServerReflectionRequest { host: "x".repeat(2000), ..known };
    let mut answers = client.server_reflection_info(until_stopped(long)).await?.into_inner();
    let answer = timeout(WAIT_MAX, answers.message()).await?;
    assert!(!matches!(answer, Ok(Some(_))), "a long message is answered");
    node.stop().await
}
