//! Connections that fall silent: neither end learns that the other is gone.

use anyhow::Result;
use pitwheel_proto::v1::worker_service_client::WorkerServiceClient;
use pitwheel_testkit::{TestDb, start_worker, wait_until, work};

use crate::gate::{Gate, enqueue_large_jobs};
use crate::proxy::{Link, Proxy};
use crate::queries::{DEAD, DONE, HELD, LEASE, LONG_LEASE, SETTLED_TWICE, SHORT_LEASE};
use crate::support::{Node, WorkerStream};

#[tokio::test]
async fn the_jobs_of_a_worker_that_fell_silent_are_given_to_another_and_stay_with_it() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), SHORT_LEASE).await?;
    let proxy = Proxy::to(node.address).await?;
    let (gate, other) = (Gate::open_for(0), Gate::open_for(0));
    let silenced = gate.start_with_five_jobs(&db, &proxy.url(), 50).await?;
    proxy.set(Link::Silent);
    // For the node the stream is still open: it sends some more jobs, and others wait to be sent.
    enqueue_large_jobs(&db, 20).await?;
    let second = start_worker(other.worker(&node.url(), 50));
    wait_until("the second worker runs all jobs", async || Ok(other.runs() == 25)).await?;

    // The node releases what it had not sent, and the worker reports what it ran: both too late.
    gate.let_pass(100);
    wait_until("the node closes the connection", async || Ok(proxy.closed_by_node() == 1)).await?;
    wait_until("the worker connects again", async || Ok(proxy.connections() == 2)).await?;
    assert_eq!((db.count(HELD).await?, db.count(DONE).await?), (25, 0));
    other.let_pass(100);
    wait_until("all are done", async || Ok(db.count(DONE).await? == 25)).await?;
    let second = second.stop().await?;
    db.pitwheel().enqueue(work(5)).await?;
    wait_until("the first worker continues", async || Ok(db.count(DONE).await? == 26)).await?;
    let silenced = silenced.stop().await?;
    assert_eq!((second.started, second.settled, second.lost), (25, 25, 0));
    assert_eq!((silenced.started, silenced.settled, silenced.lost), (6, 1, 5));
    assert_eq!(db.count(SETTLED_TWICE).await?, 0);
    node.stop().await
}

/// As after the process of a worker was stopped for long: what was sent to it meanwhile is still on its way.
#[tokio::test]
async fn jobs_that_arrive_after_their_lease_has_ended_are_not_started() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), SHORT_LEASE).await?;
    let proxy = Proxy::to(node.address).await?;
    let (gate, open) = (Gate::open_for(0), Gate::open_for(100));
    let silenced = gate.start_with_five_jobs(&db, &proxy.url(), 50).await?;
    proxy.set(Link::Silent);
    db.pitwheel().enqueue_many((5..10).map(work)).await?;
    wait_until("ten are claimed", async || Ok(db.count(HELD).await? == 10)).await?;
    let second = start_worker(open.worker(&node.url(), 50));
    wait_until("the second worker has done all jobs", async || Ok(db.count(DONE).await? == 10)).await?;
    second.stop().await?;

    proxy.set(Link::Open);
    gate.let_pass(100);
    db.pitwheel().enqueue(work(10)).await?;
    wait_until("the first worker continues", async || Ok(db.count(DONE).await? == 11)).await?;
    let stats = silenced.stop().await?;
    assert_eq!((stats.started, stats.settled, stats.lost), (6, 1, 5), "the five that it ran are lost");
    assert_eq!((db.count(SETTLED_TWICE).await?, proxy.connections()), (0, 1));
    node.stop().await
}

#[tokio::test]
async fn a_worker_that_fell_silent_for_less_than_a_lease_loses_nothing() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let proxy = Proxy::to(node.address).await?;
    let gate = Gate::open_for(0);
    let running = gate.start_with_five_jobs(&db, &proxy.url(), 20).await?;
    proxy.set(Link::Silent);
    db.pitwheel().enqueue_many((5..10).map(work)).await?;
    wait_until("ten are claimed", async || Ok(db.count(HELD).await? == 10)).await?;
    gate.let_pass(100);
    // Over a new connection the worker reports the five jobs and that it holds no others, and receives those again.
    wait_until("all are done", async || Ok(db.count(DONE).await? == 10)).await?;
    let stats = running.stop().await?;
    assert_eq!((stats.started, stats.settled, stats.lost), (10, 10, 0));
    assert_eq!((db.count(SETTLED_TWICE).await?, db.count(DEAD).await?), (0, 2), "both streams were retired");
    let charged = "select count(*) from pitwheel.job_history where attempt <> 1 or crashes <> 0";
    assert_eq!(db.count(charged).await?, 0);
    node.stop().await
}

#[tokio::test]
async fn jobs_not_sent_over_a_silent_connection_are_released_when_the_node_notices() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LONG_LEASE).await?;
    let proxy = Proxy::to(node.address).await?;
    let stream = WorkerStream::open(WorkerServiceClient::connect(proxy.url()).await?, 30).await?;
    proxy.set(Link::Silent);
    enqueue_large_jobs(&db, 30).await?;
    wait_until("the node closes the connection", async || Ok(proxy.closed_by_node() == 1)).await?;
    // Jobs that were sent belong to the worker until its lease expires; the others wait again as if never claimed.
    wait_until("the rest is released", async || Ok(db.count(HELD).await? < 30)).await?;
    let (held, unclaimed) =
        (db.count(HELD).await?, "select count(*) from pitwheel.job where attempt + crashes = 0");
    assert_eq!((db.count(unclaimed).await?, db.count(DEAD).await?), (30 - held, 0));
    let second = start_worker(Gate::open_for(100).worker(&node.url(), 30));
    wait_until("the released jobs are done", async || Ok(db.count(DONE).await? == 30 - held)).await?;
    assert_eq!(db.count(HELD).await?, held);
    second.stop().await?;
    drop(stream);
    node.stop().await
}

#[tokio::test]
async fn a_worker_that_was_cut_off_continues_when_the_network_recovers() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), SHORT_LEASE).await?;
    let proxy = Proxy::to(node.address).await?;
    let (gate, open) = (Gate::open_for(0), Gate::open_for(100));
    let cut_off = gate.start_with_five_jobs(&db, &proxy.url(), 5).await?;
    proxy.set(Link::Silent);
    gate.let_pass(100);
    let second = start_worker(open.worker(&node.url(), 5));
    wait_until("the second worker has done all jobs", async || Ok(db.count(DONE).await? == 5)).await?;
    second.stop().await?;
    db.pitwheel().enqueue_many((5..10).map(work)).await?;
    proxy.set(Link::Open);
    wait_until("the first worker continues", async || Ok(db.count(DONE).await? == 10)).await?;
    let stats = cut_off.stop().await?;
    assert_eq!((stats.started, stats.settled, stats.lost), (10, 5, 5));
    assert_eq!((db.count(SETTLED_TWICE).await?, proxy.connections()), (0, 1));
    node.stop().await
}
