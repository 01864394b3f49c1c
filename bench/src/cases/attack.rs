//! The memory of a node while a client tries to fill it.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bytes::{BufMut, Bytes};
use pitwheel::{Pitwheel, Role};
use pitwheel_proto::v1::worker_service_client::WorkerServiceClient;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Endpoint;
use tonic::{Code, Request, Status};

use super::lists::get_ok;
use crate::child_process::ChildProcess;
use crate::engine::{fresh, kind};
use crate::process_stats::{peak_memory, resident_memory};
use crate::report::Row;
use crate::session::Session;
use crate::stream_worker::OpenStream;

const MIB: usize = 1024 * 1024;
/// What one attack may add to the memory of a node, in MiB.
const GROWTH_MAX: f64 = 64.0;
const MESSAGES: usize = 3;
/// An empty job in a message: the number of the field and a length of zero.
const EMPTY_JOB: [u8; 2] = [0x0a, 0];
const BODIES: usize = 20;
/// How long the bodies and the stream are held. A node reads what it is sent within milliseconds.
const HELD: Duration = Duration::from_secs(5);
const SLOTS: u32 = 10_000;

pub(crate) async fn attack(url: &str) -> Result<Vec<Row>> {
    let (pitwheel, session) = fresh(url).await?;
    let row = |case, growth| Row::new(case, growth, "MiB").at_most(GROWTH_MAX);
    let messages = attacked(url, async |address| large_messages(&pitwheel, address).await).await?;
    let bodies = attacked(url, async |address| held_bodies(&pitwheel, address).await).await?;
    let stream = attacked(url, async |address| unread_stream(&session, address).await).await?;
    session.close().await?;
    Ok(vec![
        row("memory that 3 messages of 31 MiB by a viewer add to a node", messages),
        row("memory that 20 bodies of 4 MiB, held 10 bytes short, add to a node", bodies),
        row("memory that a stream with 10,000 slots, never read, adds to a node", stream),
    ])
}

/// The memory that an attack adds to a new node, in MiB. The node must still answer afterwards.
async fn attacked(url: &str, attack: impl AsyncFnOnce(&str) -> Result<()>) -> Result<f64> {
    let (server, address) = ChildProcess::serve(url).await?;
    get_ok(&format!("{address}/readyz")).await?;
    let before = resident_memory(server.pid()?)?;
    attack(&address).await?;
    let growth = peak_memory(server.pid()?)? - before;
    get_ok(&format!("{address}/healthz")).await?;
    server.stop().await?;
    Ok(growth)
}

async fn secret(pitwheel: &Pitwheel, role: Role) -> Result<String> {
    Ok(pitwheel.create_token(role.as_str(), role, None).await?.1)
}

/// Messages of 31 MiB that consist of empty jobs, each two bytes long, by someone who may not enqueue.
async fn large_messages(pitwheel: &Pitwheel, address: &str) -> Result<()> {
    let viewer = secret(pitwheel, Role::Viewer).await?;
    let message = Bytes::from(EMPTY_JOB.repeat(31 * MIB / EMPTY_JOB.len()));
    let mut calls = JoinSet::new();
    for _ in 0..MESSAGES {
        calls.spawn(enqueue(address.to_owned(), viewer.clone(), message.clone()));
    }
    while let Some(call) = calls.join_next().await {
        let refusal = call??;
        ensure!(refusal.code() == Code::PermissionDenied, "a viewer enqueued: {refusal}");
    }
    Ok(())
}

/// The refusal of a message that is already encoded.
async fn enqueue(address: String, secret: String, message: Bytes) -> Result<Status> {
    let mut client = tonic::client::Grpc::new(Endpoint::new(address)?.connect().await?);
    client.ready().await?;
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", format!("Bearer {secret}").parse()?);
    let path = PathAndQuery::from_static("/pitwheel.v1.JobService/Enqueue");
    client.unary(request, path, Encoded).await.err().context("the message was accepted")
}

/// Bodies whose last ten bytes are never sent.
async fn held_bodies(pitwheel: &Pitwheel, address: &str) -> Result<()> {
    let producer = secret(pitwheel, Role::Producer).await?;
    let head = format!(
        "POST /api/v1/jobs HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {producer}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        4 * MIB
    );
    let mut held = Vec::new();
    for _ in 0..BODIES {
        let mut socket = TcpStream::connect(address.trim_start_matches("http://")).await?;
        socket.write_all(head.as_bytes()).await?;
        held.push(tokio::spawn(async move {
            // The node may refuse it before it has read all of it.
            let _ = socket.write_all(&vec![b' '; 4 * MIB - 10]).await;
            socket
        }));
    }
    tokio::time::sleep(HELD).await;
    held.into_iter().for_each(|held| held.abort());
    Ok(())
}

/// A stream for which there are more jobs than it reads.
async fn unread_stream(session: &Session, address: &str) -> Result<()> {
    let fill = format!(
        "insert into pitwheel.job (kind, payload, queue, run_at, enqueued_at, priority, max_attempts)
         select '{}', to_json(repeat('x', 64000)), 'default', now(), now(), 0, 20 from generate_series(1, {SLOTS})",
        kind(false)
    );
    session.client.batch_execute(&fill).await?;
    let mut client = WorkerServiceClient::connect(address.to_owned()).await?;
    let stream = OpenStream::new(&mut client, SLOTS).await?;
    tokio::time::sleep(HELD).await;
    drop(stream);
    Ok(())
}

/// Sends a message as it is. A value of it in memory would take gigabytes in this process too.
struct Encoded;

impl Codec for Encoded {
    type Encode = Bytes;
    type Decode = ();
    type Encoder = AsIs;
    type Decoder = Nothing;

    fn encoder(&mut self) -> AsIs {
        AsIs
    }

    fn decoder(&mut self) -> Nothing {
        Nothing
    }
}

struct AsIs;

impl Encoder for AsIs {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(message);
        Ok(())
    }
}

/// No answer is expected.
struct Nothing;

impl Decoder for Nothing {
    type Item = ();
    type Error = Status;

    fn decode(&mut self, _: &mut DecodeBuf<'_>) -> Result<Option<()>, Status> {
        Ok(None)
    }
}
