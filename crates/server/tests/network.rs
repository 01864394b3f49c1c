//! The network between workers and nodes goes wrong: connections fall silent, break, or lose an answer.
//!
//! Both ends notice a silent connection after at most 15 seconds (`KEEPALIVE`); the tests that wait for it take that long.

mod support;
#[path = "support/wire.rs"]
mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures_util::future::try_join_all;
use pitwheel::{Context, NewJob, State, Worker};
use pitwheel_proto::v1;
use pitwheel_proto::v1::result::Outcome;
use pitwheel_proto::v1::worker_service_client::WorkerServiceClient;
use pitwheel_testkit::TestDb;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use crate::support::{Bare, Node, Work, start, until};
use crate::wire::{Line, Wire};

const LEASE: Duration = Duration::from_secs(30);
/// For tests in which somebody is to be found dead.
const SHORT_LEASE: Duration = Duration::from_secs(3);
/// For tests in which nobody may be: what is lost is lost for good then.
const LONG_LEASE: Duration = Duration::from_secs(600);

const HELD: &str = "select count(*) from pitwheel.job where holder is not null";
const DONE: &str = "select count(*) from pitwheel.job_history where state = 'done'";
/// A job that was settled twice is in the history twice.
const TWICE: &str = "select count(*) - count(distinct id) from pitwheel.job_history";
const DEAD: &str = "select count(*) from pitwheel.worker where dead_at is not null";

fn work(n: i64) -> NewJob {
    NewJob::of(&Work { n })
}

/// Counts how often it is run, and ends when the test lets it.
#[derive(Clone)]
struct Gate {
    runs: Arc<AtomicUsize>,
    at_a_time: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    pass: Arc<Semaphore>,
}

impl Gate {
    /// With so many let through already.
    fn open_for(count: usize) -> Gate {
        let counter = || Arc::new(AtomicUsize::new(0));
        Gate { runs: counter(), at_a_time: counter(), most: counter(), pass: Arc::new(Semaphore::new(count)) }
    }

    /// A worker whose handlers go through it.
    fn worker(&self, url: &str, slots: usize) -> Worker {
        let gate = self.clone();
        let handler = move |_: Work, _: Context| {
            let gate = gate.clone();
            async move {
                gate.runs.fetch_add(1, Ordering::SeqCst);
                let now = gate.at_a_time.fetch_add(1, Ordering::SeqCst) + 1;
                gate.most.fetch_max(now, Ordering::SeqCst);
                let passed = gate.pass.acquire().await.map(|permit| permit.forget());
                gate.at_a_time.fetch_sub(1, Ordering::SeqCst);
                passed
            }
        };
        Worker::remote(url).queue("default", slots).handle(handler)
    }

    fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }
}

/// Enqueues jobs so large that a connection takes only a few of them ahead of its reader, and waits until each is claimed.
async fn ballast(db: &TestDb, count: i64) -> Result<()> {
    let claimed = db.count(HELD).await?;
    for n in 1..=count {
        let payload = format!("{{\"n\": {n}, \"ballast\": \"{}\"}}", "x".repeat(250_000));
        db.pitwheel().enqueue(NewJob::raw("work", payload)).await?;
        until("it is claimed", async || Ok(db.count(HELD).await? == claimed + n)).await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_jobs_of_a_worker_that_fell_silent_are_given_to_another_and_stay_with_it() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), SHORT_LEASE).await?;
    let wire = Wire::to(node.address).await?;
    let (gate, other) = (Gate::open_for(0), Gate::open_for(0));
    let silenced = start(gate.worker(&wire.url(), 50));
    db.pitwheel().enqueue_many((0..5).map(work)).await?;
    until("it runs five", async || Ok(gate.runs() == 5)).await?;
    wire.turn(Line::Silent);
    // For the node the stream is as good as ever: some more are on their way, and some wait to be.
    ballast(&db, 20).await?;
    let heir = start(other.worker(&node.url(), 50));
    until("the heir runs all", async || Ok(other.runs() == 25)).await?;

    // The node gives back what it had not sent, and the worker reports what it ran: both too late.
    gate.pass.add_permits(100);
    until("the node hangs up", async || Ok(wire.hung_up() == 1)).await?;
    until("the worker comes back", async || Ok(wire.connections() == 2)).await?;
    assert_eq!((db.count(HELD).await?, db.count(DONE).await?), (25, 0));
    other.pass.add_permits(100);
    until("all are done", async || Ok(db.count(DONE).await? == 25)).await?;
    let heir = heir.stop().await?;
    db.pitwheel().enqueue(work(5)).await?;
    until("it goes on by itself", async || Ok(db.count(DONE).await? == 26)).await?;
    let silenced = silenced.stop().await?;
    assert_eq!((heir.started, heir.settled, heir.lost), (25, 25, 0));
    assert_eq!((silenced.started, silenced.settled, silenced.lost), (6, 1, 5));
    assert_eq!(db.count(TWICE).await?, 0);
    node.stop().await
}

#[tokio::test]
async fn a_worker_that_fell_silent_for_less_than_a_lease_loses_nothing() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let wire = Wire::to(node.address).await?;
    let gate = Gate::open_for(0);
    let running = start(gate.worker(&wire.url(), 20));
    db.pitwheel().enqueue_many((0..5).map(work)).await?;
    until("it runs five", async || Ok(gate.runs() == 5)).await?;
    wire.turn(Line::Silent);
    db.pitwheel().enqueue_many((5..10).map(work)).await?;
    until("ten are claimed", async || Ok(db.count(HELD).await? == 10)).await?;
    gate.pass.add_permits(100);
    // Over another connection it reports the five, says that it knows of no others, and gets those again.
    until("all are done", async || Ok(db.count(DONE).await? == 10)).await?;
    let stats = running.stop().await?;
    assert_eq!((stats.started, stats.settled, stats.lost), (10, 10, 0));
    assert_eq!((db.count(TWICE).await?, db.count(DEAD).await?), (0, 2), "both streams have signed off");
    let charged = "select count(*) from pitwheel.job_history where attempt <> 1 or crashes <> 0";
    assert_eq!(db.count(charged).await?, 0);
    node.stop().await
}

#[tokio::test]
async fn what_a_silent_connection_does_not_take_is_given_back_when_the_node_notices() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LONG_LEASE).await?;
    let wire = Wire::to(node.address).await?;
    let stream = Bare::open(WorkerServiceClient::connect(wire.url()).await?, 30).await?;
    wire.turn(Line::Silent);
    ballast(&db, 30).await?;
    until("the node hangs up", async || Ok(wire.hung_up() == 1)).await?;
    // Those that went out are the worker's for as long as its lease lasts; the others wait again as if never claimed.
    until("the rest is given back", async || Ok(db.count(HELD).await? < 30)).await?;
    let (held, fresh) =
        (db.count(HELD).await?, "select count(*) from pitwheel.job where attempt + crashes = 0");
    assert_eq!((db.count(fresh).await?, db.count(DEAD).await?), (30 - held, 0));
    let heir = start(Gate::open_for(100).worker(&node.url(), 30));
    until("they are done", async || Ok(db.count(DONE).await? == 30 - held)).await?;
    assert_eq!(db.count(HELD).await?, held);
    heir.stop().await?;
    drop(stream);
    node.stop().await
}

#[tokio::test]
async fn a_worker_that_was_cut_off_goes_on_when_the_network_heals() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), SHORT_LEASE).await?;
    let wire = Wire::to(node.address).await?;
    let (gate, open) = (Gate::open_for(0), Gate::open_for(100));
    let cut_off = start(gate.worker(&wire.url(), 5));
    db.pitwheel().enqueue_many((0..5).map(work)).await?;
    until("it runs five", async || Ok(gate.runs() == 5)).await?;
    wire.turn(Line::Silent);
    gate.pass.add_permits(100);
    let heir = start(open.worker(&node.url(), 5));
    until("the heir has done all", async || Ok(db.count(DONE).await? == 5)).await?;
    heir.stop().await?;
    db.pitwheel().enqueue_many((5..10).map(work)).await?;
    wire.turn(Line::Open);
    until("it goes on by itself", async || Ok(db.count(DONE).await? == 10)).await?;
    let stats = cut_off.stop().await?;
    assert_eq!((stats.started, stats.settled, stats.lost), (10, 5, 5));
    assert_eq!((db.count(TWICE).await?, wire.connections()), (0, 1));
    node.stop().await
}

#[tokio::test]
async fn a_job_whose_report_got_no_answer_is_completed_once_and_not_run_again() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let wire = Wire::to(node.address).await?;
    let gate = Gate::open_for(0);
    let running = start(gate.worker(&wire.url(), 5));
    db.pitwheel().enqueue_many((0..5).map(work)).await?;
    until("it runs five", async || Ok(gate.runs() == 5)).await?;
    wire.turn(Line::Answerless);
    gate.pass.add_permits(100);
    until("they are done", async || Ok(db.count(DONE).await? == 5)).await?;
    wire.turn(Line::Cut);
    db.pitwheel().enqueue(work(5)).await?;
    until("the next is done", async || Ok(db.count(DONE).await? == 6)).await?;
    let stats = running.stop().await?;
    assert_eq!((gate.runs(), stats.started), (6, 6));
    // It cannot know whether the first report was written or another worker has the jobs: they may count as lost.
    assert_eq!(stats.settled + stats.lost, 6, "{stats:?}");
    assert!(stats.settled >= 1, "{stats:?}");
    assert_eq!(db.count(TWICE).await?, 0);
    node.stop().await
}

#[tokio::test]
async fn a_report_that_got_no_answer_is_lost_when_it_is_repeated_and_changes_nothing() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let wire = Wire::to(node.address).await?;
    db.pitwheel().enqueue_many((0..4).map(work)).await?;
    let mut bare = Bare::open(WorkerServiceClient::connect(wire.url()).await?, 4).await?;
    let jobs = bare.jobs().await?;
    let hour = prost_types::Duration { seconds: 3600, nanos: 0 };
    let outcomes = [
        Outcome::Complete(v1::Complete::default()),
        Outcome::Fail(v1::Fail { error: "no".into(), retry_after: Some(hour), ..v1::Fail::default() }),
        Outcome::Bury(v1::Bury { reason: "never".into() }),
        Outcome::Snooze(v1::Snooze { delay: Some(hour) }),
    ];
    let results = jobs.iter().zip(outcomes).map(|(job, outcome)| result(job, outcome)).collect();
    let report = v1::ReportResultRequest { results };

    wire.turn(Line::Answerless);
    let unanswered = bare.client.report_result(report.clone());
    let breaks = async {
        until("it is written", async || Ok(db.count(HELD).await? == 0)).await?;
        wire.turn(Line::Cut);
        Ok::<_, anyhow::Error>(())
    };
    let (unanswered, broken) = tokio::join!(unanswered, breaks);
    broken?;
    assert!(unanswered.is_err(), "the answer came through");

    let answer = node.workers().await?.report_result(report).await?.into_inner();
    assert_eq!(answer.written, [i32::from(v1::Written::Lost); 4]);
    let jobs = try_join_all(jobs.iter().map(|job| db.pitwheel().job(job.job_id))).await?;
    let kept = jobs
        .iter()
        .map(|job| (job.summary.state, job.summary.attempt, job.errors.as_array().map_or(0, Vec::len)));
    let (done, failed) = ((State::Done, 1, 0), (State::Waiting, 1, 1));
    let (buried, snoozed) = ((State::Dead, 1, 1), (State::Waiting, 0, 0));
    assert_eq!(kept.collect::<Vec<_>>(), [done, failed, buried, snoozed]);
    node.stop().await
}

#[tokio::test]
async fn a_worker_slower_than_its_slots_has_never_more_than_its_slots() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let gate = Gate::open_for(0);
    let running = start(gate.worker(&node.url(), 4));
    db.pitwheel().enqueue_many((0..40).map(work)).await?;
    for n in 1..=40 {
        let most = 4.min(41 - n);
        until("its slots are full", async || {
            let held = db.count(HELD).await?;
            ensure!(held <= most, "{held} jobs are out");
            Ok(held == most && gate.at_a_time.load(Ordering::SeqCst) == usize::try_from(most)?)
        })
        .await?;
        gate.pass.add_permits(1);
        until("one more is done", async || Ok(db.count(DONE).await? == n)).await?;
    }
    let stats = running.stop().await?;
    assert_eq!((stats.started, stats.settled, stats.lost), (40, 40, 0));
    assert_eq!((gate.most.load(Ordering::SeqCst), db.count(TWICE).await?), (4, 0));
    node.stop().await
}

#[tokio::test]
async fn a_stream_whose_heartbeats_and_reports_go_to_another_node_goes_on() -> Result<()> {
    let db = TestDb::new().await?;
    let (near, far) =
        (Node::start(db.pitwheel(), SHORT_LEASE).await?, Node::start(db.pitwheel(), SHORT_LEASE).await?);
    let mut bare = near.stream(10).await?;
    bare.client = far.workers().await?;
    bare.beating.abort();
    db.pitwheel().enqueue_many((0..50).map(work)).await?;
    let (mut client, worker_ids) = (bare.client.clone(), vec![bare.worker_id]);
    let beating = async {
        loop {
            let beat = v1::HeartbeatRequest { worker_ids: worker_ids.clone(), ended: vec![] };
            ensure!(client.heartbeat(beat).await?.into_inner().dead_worker_ids.is_empty(), "declared dead");
            tokio::time::sleep(SHORT_LEASE / 6).await; // as often as the server asks for
        }
    };
    let working = async {
        let (begun, mut seen) = (Instant::now(), Vec::new());
        while seen.len() < 50 {
            let jobs = bare.jobs().await?;
            seen.extend(jobs.iter().map(|job| job.job_id));
            for job in &jobs {
                ensure!(bare.complete(job).await? == v1::Written::Yes, "job {} was lost", job.job_id);
            }
        }
        ensure!(begun.elapsed() > SHORT_LEASE, "too short to need its heartbeats");
        seen.sort_unstable();
        seen.dedup();
        Ok(seen.len())
    };
    let different = tokio::select! {
        worked = working => worked?,
        beaten = beating => beaten?,
    };
    assert_eq!((different, db.count(DONE).await?, db.count(TWICE).await?), (50, 50, 0));
    near.stop().await?;
    far.stop().await
}

fn result(job: &v1::Assignment, outcome: Outcome) -> v1::Result {
    let claim = v1::Claim { job_id: job.job_id, fence: job.fence };
    v1::Result { claim: Some(claim), outcome: Some(outcome) }
}

/// This process's memory in kB.
fn memory() -> Result<usize> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

#[tokio::test]
async fn a_thousand_idle_streams_cost_a_node_what_one_costs() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LONG_LEASE).await?;
    let (begun, before) = (Instant::now(), memory()?);
    let connections = try_join_all((0..4).map(|_| node.workers())).await?;
    let opened = connections.iter().cycle().take(1000).map(|client| Bare::open(client.clone(), 1));
    let mut streams = try_join_all(opened).await?;
    let memory = memory()?.saturating_sub(before);
    assert!(memory < 100_000, "{memory} kB for both ends of the streams and what runs beside this test");

    let commits = "select xact_commit from pg_stat_database where datname = current_database()";
    let from = db.count(commits).await?;
    tokio::time::sleep(Duration::from_secs(3)).await; // what an idle node does shows only over time
    let idle = db.count(commits).await? - from;
    // One poll for all is 25 a second; the registrations may be counted late.
    assert!(idle < 1500, "{idle} transactions in 3 s");
    let ids: Vec<i64> = streams.iter().map(|stream| stream.worker_id).collect();
    let beats = connections.iter().zip(ids.chunks(250)).map(async |(client, worker_ids)| {
        let beat = v1::HeartbeatRequest { worker_ids: worker_ids.to_vec(), ended: vec![] };
        client.clone().heartbeat(beat).await.map(|answer| answer.into_inner().dead_worker_ids.len())
    });
    assert_eq!(try_join_all(beats).await?, [0; 4]);

    db.pitwheel().enqueue_many((0..1000).map(work)).await?;
    let jobs = try_join_all(streams.iter_mut().map(Bare::jobs)).await?;
    assert!(jobs.iter().all(|jobs| jobs.len() == 1), "each gets one");
    let results =
        jobs.concat().iter().map(|job| result(job, Outcome::Complete(v1::Complete::default()))).collect();
    let answer = node.workers().await?.report_result(v1::ReportResultRequest { results }).await?;
    assert_eq!(answer.into_inner().written, [i32::from(v1::Written::Yes); 1000]);

    // Half of them end by themselves, half with their connections.
    streams.truncate(500);
    drop((streams, connections));
    db.pitwheel().enqueue_many((0..100).map(work)).await?;
    let mut last = node.stream(100).await?;
    let mut jobs = Vec::new();
    while jobs.len() < 100 {
        jobs.extend(last.jobs().await?);
    }
    assert!(jobs.iter().all(|job| job.attempt == 1), "nothing is charged for a stream that is gone");
    assert!(begun.elapsed() < Duration::from_secs(20), "it took {:?}", begun.elapsed());
    node.stop().await
}

#[tokio::test]
async fn a_stream_that_its_worker_calls_ended_is_sent_nothing_more() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LONG_LEASE).await?;
    // The connection of the first stream broke, and the node does not know it yet; one job of it still runs.
    let mut first = node.stream(10).await?;
    db.pitwheel().enqueue(work(0)).await?;
    let job = first.jobs().await?.remove(0);
    let mut next = node.stream(10).await?;
    let holding = vec![v1::Claim { job_id: job.job_id, fence: job.fence }];
    let ended = vec![v1::EndedStream { worker_id: first.worker_id, holding }];
    let beat = v1::HeartbeatRequest { worker_ids: vec![next.worker_id], ended };
    next.client.heartbeat(beat).await?;
    db.pitwheel().enqueue_many((1..9).map(work)).await?;
    // What was claimed for the first before it was called ended is given back, so that all come here.
    let mut jobs = Vec::new();
    while jobs.len() < 8 {
        jobs.extend(next.jobs().await?);
    }
    assert_eq!(next.complete(&job).await?, v1::Written::Yes, "what runs is still its worker's");
    node.stop().await
}

#[tokio::test]
async fn of_two_reports_for_one_job_the_later_claim_is_written_and_the_earlier_is_lost() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let mut bare = node.stream(1).await?;
    // Reports of all workers are written together, so a late holder's may come with that of the next.
    for (late, order) in [(0, "late first"), (1, "late last")] {
        db.pitwheel().enqueue(work(0)).await?;
        let first = bare.jobs().await?.remove(0);
        let release = Outcome::Release(v1::Release {});
        assert_eq!(bare.report(&first, release).await?, v1::Written::Yes);
        let second = bare.jobs().await?.remove(0);
        assert_eq!(first.job_id, second.job_id);
        let kept = v1::Complete { result: Some("1".into()), ..v1::Complete::default() };
        let complete = |job| result(job, Outcome::Complete(kept.clone()));
        let mut results = vec![complete(&first), complete(&second)];
        results.rotate_left(late);
        let answer = bare.client.report_result(v1::ReportResultRequest { results }).await?.into_inner();
        let mut right = [i32::from(v1::Written::Lost), i32::from(v1::Written::Yes)];
        right.rotate_left(late);
        assert_eq!(answer.written, right, "{order}");
    }
    node.stop().await
}

#[tokio::test]
async fn a_node_ends_whoever_is_still_connected() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let wire = Wire::to(node.address).await?;
    let wordless = TcpStream::connect(node.address).await?;
    // Connections are accepted in the order in which they were made: the node has the first one by now.
    let silent = Bare::open(WorkerServiceClient::connect(wire.url()).await?, 1).await?;
    wire.turn(Line::Silent);
    node.stop().await?;
    drop((wordless, silent));
    Ok(())
}

#[tokio::test]
async fn a_worker_can_be_stopped_when_no_server_is_left() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), SHORT_LEASE).await?;
    let gate = Gate::open_for(0);
    let running = start(gate.worker(&node.url(), 1).grace(Duration::ZERO));
    db.pitwheel().enqueue(work(1)).await?;
    until("it runs", async || Ok(gate.runs.load(Ordering::SeqCst) == 1)).await?;
    node.stop().await?;
    let stats = running.stop().await?;
    assert_eq!((stats.started, stats.settled), (1, 0), "it waits for the lease to give the job back");
    Ok(())
}
