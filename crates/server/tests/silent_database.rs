//! Connections of a node to its database that do not answer.

mod support;

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use pitwheel::engine::declare_dead;
use pitwheel::{Pitwheel, Role};
use pitwheel_devdb::{Options as ServerOptions, Server};
use pitwheel_proto::v1;
use pitwheel_server::Options;
use pitwheel_testkit::{connect, work};
use tokio::time::timeout;
use tonic::Request;

use crate::support::{Node, Silent, next_welcome, result, stream_request};

/// A database server whose connections a test can silence.
async fn database() -> Result<(Server, Pitwheel)> {
    let server = Server::start(ServerOptions::temporary())?;
    let pitwheel = Pitwheel::connect(&server.url()).await?;
    pitwheel.migrate().await?;
    Ok((server, pitwheel))
}

/// All connections of the node, as if a firewall had forgotten them. New ones are open.
#[tokio::test]
async fn silent_connections_delay_reports_for_seconds_only() -> Result<()> {
    let (server, pitwheel) = database().await?;
    let node = Node::start(&pitwheel, Duration::from_secs(600)).await?;
    let mut stream = node.stream(10).await?;
    pitwheel.enqueue_many((0..10).map(work)).await?;
    let jobs = stream.jobs_at_least(10).await?;
    for job in &jobs[1..] {
        stream.complete(job).await?;
    }
    let silent = Silent::all(&server.url()).await?;
    let mut client = stream.client.clone();
    let complete = v1::result::Outcome::Complete(v1::Complete::default());
    let report = v1::ReportResultRequest { results: vec![result(&jobs[0], complete)] };
    let reporting = async {
        while client.report_result(report.clone()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await; // between two reports
        }
    };
    timeout(Duration::from_secs(20), reporting).await?;
    silent.end()?;
    node.stop().await
}

/// Its heartbeats go to a node that must read in the database whose worker it is.
#[tokio::test]
async fn silent_connections_cost_a_worker_with_a_token_no_lease() -> Result<()> {
    const LEASE: Duration = Duration::from_secs(3);
    let (server, pitwheel) = database().await?;
    let mut options = Options::default();
    (options.lease, options.require_tokens) = (LEASE, true);
    let near = Node::start_with(&pitwheel, options.clone(), "127.0.0.1:0".parse()?).await?;
    let far = Node::start_with(&pitwheel, options, "127.0.0.1:0".parse()?).await?;
    let (_, secret) = pitwheel.create_token("worker", Role::Worker, None).await?;
    let authorization: tonic::metadata::MetadataValue<_> = format!("Bearer {secret}").parse()?;
    let mut request = Request::new(stream_request(1));
    request.metadata_mut().insert("authorization", authorization.clone());
    let mut messages = near.workers().await?.stream_jobs(request).await?.into_inner();
    let worker = next_welcome(&mut messages).await?.worker_id;
    let mut client = far.workers().await?;
    let mut heartbeat = async || {
        let mut request = Request::new(v1::HeartbeatRequest { worker_ids: vec![worker], ended: Vec::new() });
        request.metadata_mut().insert("authorization", authorization.clone());
        client.heartbeat(request).await.map(|response| response.into_inner().dead_worker_ids)
    };
    heartbeat().await?;

    let silent = Silent::all(&server.url()).await?;
    let (by_hand, begun) = (connect(&server.url()).await?, Instant::now());
    let sweeping = async {
        while begun.elapsed() < 2 * LEASE {
            declare_dead(&by_hand, Duration::ZERO, Duration::from_secs(3600)).await?;
            let dead = by_hand.query("select from pitwheel.worker where dead_at is not null", &[]).await?;
            ensure!(dead.is_empty(), "it was declared dead after {:?}", begun.elapsed());
            tokio::time::sleep(Duration::from_millis(100)).await; // between two sweeps
        }
        Ok(())
    };
    let renewing = async {
        loop {
            if let Ok(dead) = heartbeat().await {
                assert!(dead.is_empty(), "{dead:?}");
            }
            tokio::time::sleep(LEASE / 6).await; // the interval that the server asks for
        }
    };
    tokio::select! {
        swept = sweeping => swept?,
        () = renewing => {}
    }
    silent.end()?;
    drop(messages);
    tokio::try_join!(near.stop(), far.stop())?;
    Ok(())
}
