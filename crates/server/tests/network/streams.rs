//! Streams of a slow worker, a thousand idle streams, streams that have ended, and nodes that stop.

use std::time::Duration;

use anyhow::Result;
use futures_util::future::try_join_all;
use pitwheel::engine::AHEAD_MAX;
use pitwheel_proto::v1;
use pitwheel_proto::v1::result::Outcome;
use pitwheel_proto::v1::worker_service_client::WorkerServiceClient;
use pitwheel_testkit::{TestDb, start_worker, wait_until, work};
use tokio::net::TcpStream;

use crate::gate::Gate;
use crate::proxy::{Link, Proxy};
use crate::queries::{DONE, HELD, LEASE, LONG_LEASE, SETTLED_TWICE, SHORT_LEASE};
use crate::support::{Node, WorkerStream, claim_of, result};

#[tokio::test]
async fn a_worker_never_gets_more_jobs_than_its_slots() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let gate = Gate::open_for(0);
    let running = start_worker(gate.worker(&node.url(), 4));
    db.pitwheel().enqueue_many((0..40).map(work)).await?;
    for n in 1..=40 {
        let most = usize::try_from(4.min(41 - n))?;
        wait_until("its slots are full", async || Ok(gate.running() == most)).await?;
        gate.let_pass(1);
        wait_until("one more job is done", async || Ok(db.count(DONE).await? == n)).await?;
    }
    let stats = running.stop().await?;
    assert_eq!((stats.started, stats.settled, stats.lost), (40, 40, 0));
    assert_eq!((gate.most_at_once(), db.count(SETTLED_TWICE).await?), (4, 0));
    node.stop().await
}

/// The jobs of the broken stream keep their slots, and the new one has those that become free.
#[tokio::test]
async fn a_worker_that_connects_again_runs_no_more_jobs_than_its_slots() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LONG_LEASE).await?;
    let proxy = Proxy::to(node.address).await?;
    let gate = Gate::open_for(0);
    let running = start_worker(gate.worker(&proxy.url(), 4));
    db.pitwheel().enqueue_many((0..20).map(work)).await?;
    wait_until("its slots are full", async || Ok(gate.running() == 4)).await?;
    proxy.set(Link::Cut);
    gate.let_pass(1);
    wait_until("a job runs in the free slot", async || Ok(gate.runs() == 5)).await?;
    gate.let_pass(19);
    wait_until("all are done", async || Ok(db.count(DONE).await? == 20)).await?;
    let stats = running.stop().await?;
    assert_eq!((stats.started, stats.settled, stats.lost), (20, 20, 0));
    assert_eq!((gate.most_at_once(), db.count(SETTLED_TWICE).await?), (4, 0));
    node.stop().await
}

#[tokio::test]
async fn a_worker_that_connects_again_claims_no_job_that_cannot_start() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LONG_LEASE).await?;
    let proxy = Proxy::to(node.address).await?;
    let gate = Gate::open_for(0);
    let running = start_worker(gate.worker(&proxy.url(), 4));
    db.pitwheel().enqueue_many((0..12).map(work)).await?;
    wait_until("its slots are full", async || Ok(gate.running() == 4)).await?;
    proxy.set(Link::Cut);
    // The time that is tested: jobs that cannot start are released each second.
    let claimed_again = "select count(*) from (select fence from pitwheel.job union all select fence from pitwheel.job_history) as job
        where fence > 1";
    for runs in [4, 5] {
        wait_until("its slots are full", async || Ok(gate.runs() == runs)).await?;
        tokio::time::sleep(3 * AHEAD_MAX).await; // jobs would have been released by now
        assert_eq!((db.count(claimed_again).await?, db.count(HELD).await?), (0, 4));
        gate.let_pass(1);
    }
    gate.let_pass(10);
    wait_until("all are done", async || Ok(db.count(DONE).await? == 12)).await?;
    db.pitwheel().enqueue_many((0..8).map(work)).await?;
    wait_until("all slots are in use again", async || Ok(gate.running() == 4)).await?;
    gate.let_pass(8);
    wait_until("all are done", async || Ok(db.count(DONE).await? == 20)).await?;
    let stats = running.stop().await?;
    assert_eq!((stats.started, stats.settled, stats.lost), (20, 20, 0));
    assert_eq!((gate.most_at_once(), db.count(claimed_again).await?), (4, 0));
    node.stop().await
}

#[tokio::test]
async fn a_thousand_idle_streams_cost_a_node_little_more_than_one() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LONG_LEASE).await?;
    let connections = try_join_all((0..4).map(|_| node.workers())).await?;
    let opened = connections.iter().cycle().take(1000).map(|client| WorkerStream::open(client.clone(), 1));
    let mut streams = try_join_all(opened).await?;

    let commits = "select xact_commit from pg_stat_database where datname = current_database()";
    let from = db.count(commits).await?;
    tokio::time::sleep(Duration::from_secs(3)).await; // the transactions of an idle node, counted over time
    let idle = db.count(commits).await? - from;
    // One poll for all streams is 25 a second; the registrations may be counted late.
    assert!(idle < 1500, "{idle} transactions in 3 s");
    let ids: Vec<i64> = streams.iter().map(|stream| stream.worker_id).collect();
    let heartbeats = connections.iter().zip(ids.chunks(250)).map(async |(client, worker_ids)| {
        let heartbeat = v1::HeartbeatRequest { worker_ids: worker_ids.to_vec(), ended: vec![] };
        client.clone().heartbeat(heartbeat).await.map(|response| response.into_inner().dead_worker_ids.len())
    });
    assert_eq!(try_join_all(heartbeats).await?, [0; 4]);

    db.pitwheel().enqueue_many((0..1000).map(work)).await?;
    let jobs = try_join_all(streams.iter_mut().map(WorkerStream::jobs)).await?;
    assert!(jobs.iter().all(|jobs| jobs.len() == 1), "each stream gets one job");
    let results =
        jobs.concat().iter().map(|job| result(job, Outcome::Complete(v1::Complete::default()))).collect();
    let response = node.workers().await?.report_result(v1::ReportResultRequest { results }).await?;
    assert_eq!(response.into_inner().written, [i32::from(v1::Written::Yes); 1000]);

    // Half of the streams end by themselves, half with their connections.
    streams.truncate(500);
    drop((streams, connections));
    db.pitwheel().enqueue_many((0..100).map(work)).await?;
    let mut last = node.stream(100).await?;
    let jobs = last.jobs_at_least(100).await?;
    assert!(jobs.iter().all(|job| job.attempt == 1), "an ended stream costs its jobs no attempt");
    node.stop().await
}

#[tokio::test]
async fn a_stream_that_its_worker_reports_as_ended_is_sent_nothing_more() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LONG_LEASE).await?;
    // The connection of the first stream is broken and the node does not know it yet; one of its jobs still runs.
    let mut first = node.stream(10).await?;
    db.pitwheel().enqueue(work(0)).await?;
    let job = first.jobs().await?.remove(0);
    let mut next = node.stream(10).await?;
    let holding = vec![claim_of(&job)];
    let ended = vec![v1::EndedStream { worker_id: first.worker_id, holding }];
    let heartbeat = v1::HeartbeatRequest { worker_ids: vec![next.worker_id], ended };
    next.client.heartbeat(heartbeat).await?;
    db.pitwheel().enqueue_many((1..9).map(work)).await?;
    // What was claimed for the first stream before it was reported as ended is released, so that all jobs come here.
    next.jobs_at_least(8).await?;
    assert_eq!(next.complete(&job).await?, v1::Written::Yes, "the worker still holds the job that runs");
    node.stop().await
}

#[tokio::test]
async fn a_locked_job_of_an_ended_stream_delays_neither_the_heartbeat_nor_other_ended_streams() -> Result<()>
{
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LONG_LEASE).await?;
    let (mut ended, mut jobs) = (Vec::new(), Vec::new());
    for n in 0..2 {
        let mut stream = node.stream(1).await?;
        db.pitwheel().enqueue(work(n)).await?;
        jobs.push(stream.jobs().await?.remove(0));
        ended.push(stream);
    }
    let mut next = node.stream(1).await?;
    let mut by_hand = db.client().await?;
    let lock = by_hand.transaction().await?;
    lock.execute("select from pitwheel.job where id = $1 for update", &[&jobs[0].job_id]).await?;
    // As if these jobs had never reached the worker.
    let of = |stream: &WorkerStream| v1::EndedStream { worker_id: stream.worker_id, holding: Vec::new() };
    let heartbeat =
        v1::HeartbeatRequest { worker_ids: vec![next.worker_id], ended: ended.iter().map(of).collect() };
    let response = next.client.heartbeat(heartbeat).await?.into_inner();
    assert!(response.dead_worker_ids.is_empty());
    let again = next.jobs().await?.remove(0);
    assert_eq!(again.job_id, jobs[1].job_id, "the job of the second stream was released");
    assert_eq!(next.complete(&again).await?, v1::Written::Yes);
    lock.rollback().await?;
    // The worker does not name the first stream again.
    let again = next.jobs().await?.remove(0);
    assert_eq!((again.job_id, again.attempt), (jobs[0].job_id, 1), "no crash is counted");
    wait_until("both workers are signed off", async || {
        Ok(db.count("select count(*) from pitwheel.worker where dead_at is null").await? == 1)
    })
    .await?;
    assert_eq!(db.count("select max(crashes)::bigint from pitwheel.job").await?, 0);
    node.stop().await
}

#[tokio::test]
async fn a_node_that_stops_closes_connections_that_are_still_open() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let proxy = Proxy::to(node.address).await?;
    let unused = TcpStream::connect(node.address).await?;
    // Connections are accepted in order: the node has the unused one by now.
    let silent = WorkerStream::open(WorkerServiceClient::connect(proxy.url()).await?, 1).await?;
    proxy.set(Link::Silent);
    node.stop().await?;
    drop((unused, silent));
    Ok(())
}

#[tokio::test]
async fn a_worker_can_be_stopped_when_no_server_is_left() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), SHORT_LEASE).await?;
    let gate = Gate::open_for(0);
    let running = start_worker(gate.worker(&node.url(), 1).grace(Duration::ZERO));
    db.pitwheel().enqueue(work(1)).await?;
    wait_until("the job runs", async || Ok(gate.runs() == 1)).await?;
    node.stop().await?;
    let stats = running.stop().await?;
    assert_eq!((stats.started, stats.settled), (1, 0), "the job is given back when its lease expires");
    Ok(())
}
