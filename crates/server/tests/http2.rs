//! Clients that misuse HTTP/2 lose their connection, and with it what the server keeps for them.

mod support;

use std::time::Duration;

use anyhow::{Context as _, Result};
use pitwheel::{NewJob, Role};
use pitwheel_proto::v1::worker_service_client::WorkerServiceClient;
use pitwheel_server::Options;
use pitwheel_testkit::{Http, TestDb, WAIT_MAX, wait_until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::Request;
use tonic::transport::Endpoint;

use crate::support::{Node, next_assignments, next_welcome, stream_request};

/// More streams than may fail on one connection.
const STREAMS: u32 = 1500;
/// The bytes of a large payload.
const LARGE_BYTES: usize = 200_000;
/// Two more of its answers than fit into the room of a token.
const UNREAD: u32 = 168;

/// What starts a connection.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Types of frames.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
/// The flag of a frame that ends the headers.
const END_HEADERS: u8 = 4;
/// The flag of a frame that ends the request.
const END_STREAM: u8 = 1;
/// The flag of a frame that answers another.
const ACK: u8 = 1;
/// The setting of the window that new streams have.
const INITIAL_WINDOW: u8 = 4;
/// The error code of a connection that was given up because of its load.
const ENHANCE_YOUR_CALM: u8 = 11;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = [0, 0, payload.len() as u8];
    [&length, [kind, flags].as_slice(), &stream.to_be_bytes(), payload].concat()
}

/// Connects as a client that takes one byte of each answer, and sends this request so often.
async fn without_reading(node: &Node, path: &str, secret: &str, times: u32) -> Result<TcpStream> {
    let token = format!("Bearer {secret}");
    // GET http://a with fields that are not indexed: :path and authorization.
    let mut headers = b"\x82\x86\x41\x01a".to_vec();
    headers.extend([&[0x04, path.len() as u8], path.as_bytes()].concat());
    headers.extend([&[0x0f, 0x08, token.len() as u8], token.as_bytes()].concat());
    let mut bytes = PREFACE.to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, &[0, INITIAL_WINDOW, 0, 0, 0, 1]));
    for stream in (1..2 * times).step_by(2) {
        bytes.extend(frame(HEADERS, END_HEADERS | END_STREAM, stream, &headers));
    }
    let mut socket = TcpStream::connect(node.address).await?;
    socket.write_all(&bytes).await?;
    Ok(socket)
}

async fn start_with_tokens(db: &TestDb) -> Result<Node> {
    let mut options = Options::default();
    options.require_tokens = true;
    Node::start_with(db.pitwheel(), options, "127.0.0.1:0".parse()?).await
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
    let mut bytes = PREFACE.to_vec();
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
async fn bodies_that_wait_take_little_and_leave_window_for_a_heartbeat() -> Result<()> {
    /// The reports that a Rust worker sends at a time.
    const REPORTS: u32 = 4;
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), Duration::from_secs(30)).await?;
    let mut socket = TcpStream::connect(node.address).await?;
    socket.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).await?;
    // Without settings and updates both windows have 64 KiB.
    let (mut of_stream, mut of_connection) = (65_535, 65_535);
    loop {
        let (kind, payload) = next_frame(&mut socket).await?;
        match (kind, payload.as_slice()) {
            (SETTINGS, []) => {}
            (SETTINGS, settings) => {
                for setting in settings.chunks(6).filter(|setting| setting[..2] == [0, INITIAL_WINDOW]) {
                    of_stream = u32::from_be_bytes(setting[2..].try_into()?);
                }
            }
            (WINDOW_UPDATE, more) => {
                of_connection += u32::from_be_bytes(more.try_into()?);
                break;
            }
            _ => {}
        }
    }
    assert_eq!(of_stream, 256 * 1024, "each holds so much");
    assert!(of_connection > REPORTS * of_stream, "{of_connection}");
    drop(socket);
    node.stop().await
}

#[tokio::test]
async fn a_stream_that_was_ended_and_is_not_read_ends_with_its_connection() -> Result<()> {
    let db = TestDb::new().await?;
    let node = start_with_tokens(&db).await?;
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

/// Enqueues a job whose answer is large, and returns its path.
async fn large_job(db: &TestDb) -> Result<String> {
    let payload = format!("\"{}\"", "x".repeat(LARGE_BYTES));
    let job = db.pitwheel().enqueue(NewJob::raw("large", payload)).await?;
    Ok(format!("/api/v1/jobs/{}", job.id))
}

#[tokio::test]
async fn a_token_cannot_leave_more_unread_than_its_share() -> Result<()> {
    let db = TestDb::new().await?;
    let node = start_with_tokens(&db).await?;
    let path = large_job(&db).await?;
    let secret = db.pitwheel().create_token("viewer", Role::Viewer, None).await?.1;
    let other = db.pitwheel().create_token("other", Role::Viewer, None).await?.1;
    let (http, other) = (Http::new(node.address).token(&secret), Http::new(node.address).token(&other));
    for _ in 0..2 * UNREAD {
        assert_eq!(http.get(&path).await?.status, 200, "what was read does not count");
    }
    let socket = without_reading(&node, &path, &secret, UNREAD).await?;
    wait_until("calls are refused", async || Ok(http.get(&path).await?.status == 429)).await?;
    assert_eq!(other.get(&path).await?.status, 200);
    drop(socket);
    wait_until("calls are answered", async || Ok(http.get(&path).await?.status == 200)).await?;
    node.stop().await
}

#[tokio::test]
async fn an_answer_that_is_not_taken_ends_with_its_connection() -> Result<()> {
    let db = TestDb::new().await?;
    let node = start_with_tokens(&db).await?;
    let path = large_job(&db).await?;
    let secret = db.pitwheel().create_token("viewer", Role::Viewer, None).await?.1;
    let mut socket = without_reading(&node, &path, &secret, 1).await?;
    let mut taken = 0;
    let ended = timeout(WAIT_MAX, async {
        while let Ok((kind, payload)) = next_frame(&mut socket).await {
            match kind {
                DATA => taken += payload.len(),
                // The connection is alive.
                PING => socket.write_all(&frame(PING, ACK, 0, &payload)).await?,
                _ => {}
            }
        }
        anyhow::Ok(())
    });
    ended.await.context("the connection is still open")??;
    assert_eq!(taken, 1);
    node.stop().await
}

#[tokio::test]
async fn streams_of_a_token_that_are_not_read_get_few_bytes() -> Result<()> {
    const STREAMS: usize = 150;
    /// They fit into one message.
    const SLOTS: u32 = 4;
    const JOB_BYTES: usize = 250_000;
    /// Bytes of jobs that may wait in the streams of a token, before each of them gets one job at a time.
    const TOKEN_BYTES: usize = 64 * 1024 * 1024;
    let db = TestDb::new().await?;
    let mut options = Options::default();
    options.require_tokens = true;
    // So long that no worker needs a heartbeat here.
    options.lease = Duration::from_secs(3600);
    let node = Node::start_with(db.pitwheel(), options, "127.0.0.1:0".parse()?).await?;
    let jobs = "insert into pitwheel.job (run_at, enqueued_at, kind, queue, payload, priority, max_attempts)
        select now(), now(), 'work', 'default', payload::json, 0, 20
        from (select '\"' || repeat('x', $1) || '\"' as payload) as large, generate_series(1, $2)";
    let count = STREAMS as i32 * (SLOTS as i32 + 1);
    db.client().await?.execute(jobs, &[&(JOB_BYTES as i32), &count]).await?;
    let unread = db.pitwheel().create_token("unread", Role::Worker, None).await?.1;
    let other = db.pitwheel().create_token("other", Role::Worker, None).await?.1;
    // Each stream has the default window.
    let channel = Endpoint::new(node.url())?
        .initial_connection_window_size(2 * 65_535 * STREAMS as u32)
        .initial_stream_window_size(65_535)
        .connect()
        .await?;
    let open = async |secret: &str| {
        let mut request = Request::new(stream_request(SLOTS));
        request.metadata_mut().insert("authorization", format!("Bearer {secret}").parse()?);
        anyhow::Ok(WorkerServiceClient::new(channel.clone()).stream_jobs(request).await?.into_inner())
    };
    let mut streams = Vec::new();
    for _ in 0..STREAMS {
        streams.push(open(&unread).await?);
    }
    wait_until("each has a job", async || {
        Ok(db.count("select count(distinct holder) from pitwheel.job").await? == STREAMS as i64)
    })
    .await?;
    // Later claims are over too.
    let mut read = open(&other).await?;
    next_welcome(&mut read).await?;
    assert_eq!(next_assignments(&mut read).await?.len(), SLOTS as usize, "another token is not affected");
    let claimed = db.count("select count(holder) from pitwheel.job").await? as usize - SLOTS as usize;
    assert!(claimed < TOKEN_BYTES / JOB_BYTES + STREAMS, "{claimed} jobs");
    drop((streams, read));
    node.stop().await
}
