//! Clients that misuse HTTP/2 lose their connection, and with it what the server keeps for them.

mod support;

use std::time::Duration;

use anyhow::{Context as _, Result};
use pitwheel::Role;
use pitwheel_proto::v1::worker_service_client::WorkerServiceClient;
use pitwheel_server::Options;
use pitwheel_testkit::{TestDb, WAIT_MAX};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::Request;
use tonic::transport::Endpoint;

use crate::support::{Node, stream_request};

/// More streams than may fail on one connection.
const STREAMS: u32 = 1500;

/// Types of frames.
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
/// The flag of a frame that ends the headers.
const END_HEADERS: u8 = 4;
/// The error code of a connection that was given up because of its load.
const ENHANCE_YOUR_CALM: u8 = 11;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = [0, 0, payload.len() as u8];
    [&length, [kind, flags].as_slice(), &stream.to_be_bytes(), payload].concat()
}

/// The next frame: its type and its payload.
async fn next_frame(socket: &mut TcpStream) -> Result<(u8, Vec<u8>)> {
    let mut head = [0; 9];
    timeout(WAIT_MAX, socket.read_exact(&mut head)).await??;
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    let mut payload = vec![0; length as usize];
    timeout(WAIT_MAX, socket.read_exact(&mut payload)).await??;
    Ok((head[3], payload))
}

#[tokio::test]
async fn a_connection_whose_streams_fail_again_and_again_is_closed() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), Duration::from_secs(30)).await?;
    let mut socket = TcpStream::connect(node.address).await?;
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, &[]));
    for stream in (1..2 * STREAMS).step_by(2) {
        // GET http://a/ without an end, then more window than there may be.
        bytes.extend(frame(HEADERS, END_HEADERS, stream, b"\x82\x86\x84\x41\x01a"));
        bytes.extend(frame(WINDOW_UPDATE, 0, stream, &0x7fff_ffff_u32.to_be_bytes()));
    }
    socket.write_all(&bytes).await?;
    let code = loop {
        let (kind, payload) = next_frame(&mut socket).await.context("no end was announced")?;
        if kind == GOAWAY {
            break payload[7];
        }
    };
    assert_eq!(code, ENHANCE_YOUR_CALM);
    node.stop().await
}

#[tokio::test]
async fn a_stream_that_was_ended_and_is_not_read_ends_with_its_connection() -> Result<()> {
    let db = TestDb::new().await?;
    let mut options = Options::default();
    options.require_tokens = true;
    let node = Node::start_with(db.pitwheel(), options, "127.0.0.1:0".parse()?).await?;
    let secret = db.pitwheel().create_token("worker", Role::Worker, None).await?.1;
    // The client takes no data, and still answers pings.
    let channel = Endpoint::new(node.url())?.initial_stream_window_size(0).connect().await?;
    let mut request = Request::new(stream_request(1));
    request.metadata_mut().insert("authorization", format!("Bearer {secret}").parse()?);
    let mut messages = WorkerServiceClient::new(channel).stream_jobs(request).await?.into_inner();
    db.pitwheel().revoke_token("worker").await?;
    let message = timeout(WAIT_MAX, messages.message()).await.context("the connection is still open")?;
    assert!(message.is_err(), "{message:?}");
    node.stop().await
}
