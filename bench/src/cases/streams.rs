//! Statements of a node with many idle streams.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use pitwheel_proto::v1;
use pitwheel_proto::v1::stream_jobs_response::Event;
use pitwheel_proto::v1::worker_service_client::WorkerServiceClient;
use tokio::task::JoinSet;
use tonic::transport::Channel;

use super::idle::statements;
use super::remote::until_open;
use crate::child_process::ChildProcess;
use crate::engine::{fresh, kind};
use crate::report::Row;

const STREAMS: usize = 1000;
/// Few, because each needs a file descriptor in this process and in the server.
const CONNECTIONS: usize = 4;
/// Streams are opened over this time, the interval of heartbeats. Otherwise all heartbeats would arrive at once and be written
/// in one statement.
const OPENED_OVER: Duration = Duration::from_secs(5);

/// Statements per second of one node, with one idle stream and then with a thousand.
pub(crate) async fn streams(url: &str) -> Result<Vec<Row>> {
    let (_, session) = fresh(url).await?;
    let (server, address) = ChildProcess::serve(url).await?;
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        clients.push(WorkerServiceClient::connect(address.clone()).await?);
    }
    let mut fleet = JoinSet::new();
    fleet.spawn(idle_worker(clients[0].clone(), Duration::ZERO));
    until_open(&session, 1).await?;
    let one = statements(&session).await?;
    for n in 1..STREAMS {
        let delay = OPENED_OVER.mul_f64(n as f64 / STREAMS as f64);
        fleet.spawn(idle_worker(clients[n % CONNECTIONS].clone(), delay));
    }
    until_open(&session, STREAMS).await?;
    let thousand = statements(&session).await?;
    if let Some(ended) = fleet.try_join_next() {
        bail!("a stream ended: {:?}", ended?);
    }
    fleet.shutdown().await;
    drop(clients);
    server.stop().await?;
    session.close().await?;
    Ok(vec![
        Row::new("idle node, 1,000 streams", thousand, "statements/s").against("1 stream", one).at_most(1.2),
    ])
}

/// Acts like an idle worker process: opens a stream and sends heartbeats at the server's interval.
async fn idle_worker(mut client: WorkerServiceClient<Channel>, delay: Duration) -> Result<()> {
    tokio::time::sleep(delay).await;
    let request = v1::StreamJobsRequest {
        worker: "idle".to_owned(),
        queues: vec!["default".to_owned()],
        kinds: vec![kind(false).to_owned()],
        slots: 10,
        ..v1::StreamJobsRequest::default()
    };
    let mut messages = client.stream_jobs(request).await?.into_inner();
    let Some(Event::Welcome(welcome)) = messages.message().await?.and_then(|message| message.event) else {
        bail!("the stream did not start with a welcome");
    };
    let every: Duration =
        welcome.heartbeat_every.context("the welcome has no heartbeat interval")?.try_into()?;
    let heartbeats = async {
        loop {
            let request = v1::HeartbeatRequest { worker_ids: vec![welcome.worker_id], ended: Vec::new() };
            let answer = client.heartbeat(request).await?.into_inner();
            ensure!(answer.dead_worker_ids.is_empty(), "the server declared a live worker dead");
            tokio::time::sleep(every).await;
        }
    };
    tokio::select! {
        failed = heartbeats => failed,
        message = messages.message() => bail!("the idle stream ended, or delivered a job: {message:?}"),
    }
}
