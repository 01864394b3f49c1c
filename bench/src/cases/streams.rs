//! Statements and memory of a node with many idle streams.

use std::time::Duration;

use anyhow::{Result, bail};
use pitwheel_proto::v1::worker_service_client::WorkerServiceClient;
use tokio::task::JoinSet;

use super::idle::statements;
use super::remote::until_open;
use crate::child_process::ChildProcess;
use crate::engine::fresh;
use crate::process_stats::{peak_memory, resident_memory};
use crate::report::Row;
use crate::stream_worker::{Client, OpenStream};

const STREAMS: usize = 1000;
/// Few, because each needs a file descriptor in this process and in the server.
const CONNECTIONS: usize = 4;
/// Streams are opened over this time, the interval of heartbeats. Otherwise all heartbeats would arrive at once and be written
/// in one statement.
const OPENED_OVER: Duration = Duration::from_secs(5);

/// Statements per second of one node, with one idle stream and then with a thousand, and what these add to its memory.
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
    let before = resident_memory(server.pid()?)?;
    for n in 1..STREAMS {
        let delay = OPENED_OVER.mul_f64(n as f64 / STREAMS as f64);
        fleet.spawn(idle_worker(clients[n % CONNECTIONS].clone(), delay));
    }
    until_open(&session, STREAMS).await?;
    let thousand = statements(&session).await?;
    let memory = peak_memory(server.pid()?)? - before;
    if let Some(ended) = fleet.try_join_next() {
        bail!("a stream ended: {:?}", ended?);
    }
    fleet.shutdown().await;
    drop(clients);
    server.stop().await?;
    session.close().await?;
    Ok(vec![
        Row::new("idle node, 1,000 streams", thousand, "statements/s").against("1 stream", one).at_most(1.2),
        Row::new("memory of 1,000 idle streams in a node", memory, "MiB").at_most(64.0),
    ])
}

async fn idle_worker(mut client: Client, delay: Duration) -> Result<()> {
    tokio::time::sleep(delay).await;
    OpenStream::new(&mut client, 10).await?.stay_idle(client).await
}
