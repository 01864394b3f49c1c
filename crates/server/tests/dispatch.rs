//! Jobs come down streams, results go back: the promises of the engine, through the gRPC door.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Result;
use pitwheel::{Context, NewJob, State, Verdict, Worker};
use pitwheel_proto::v1;
use pitwheel_testkit::TestDb;
use tonic::Code;

use crate::support::{Node, PATIENCE, Work, start, until};

const LEASE: Duration = Duration::from_secs(30);
/// For tests in which somebody is to be found dead.
const SHORT_LEASE: Duration = Duration::from_secs(2);

fn work(n: i64) -> NewJob {
    NewJob::of(&Work { n })
}

#[tokio::test]
async fn a_handler_does_remotely_what_it_does_at_the_database() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let ids: Vec<i64> =
        db.pitwheel().enqueue_many((0..6).map(work)).await?.iter().map(|job| job.id).collect();
    let handler = async |job: Work, context: Context| match job.n {
        0 => Ok(Verdict::Complete),
        1 => Verdict::complete_with(&"kept").map_err(|error| error.to_string()),
        2 => Ok(Verdict::bury("no such customer")),
        3 => Ok(Verdict::Snooze(Duration::from_secs(3600))),
        4 => panic!("as told"),
        _ => context.enqueue(work(0)).await.map(|_| Verdict::Complete).map_err(|error| error.to_string()),
    };
    let running = start(Worker::remote(&node.url()).queue("default", 10).name("far away").handle(handler));
    until("all have run", async || {
        let left = db.count(
            "select count(*) from pitwheel.job where holder is not null or claimed_at is null and fence = 0",
        );
        Ok(left.await? == 0)
    })
    .await?;
    let stats = running.stop().await?;
    assert_eq!((stats.started, stats.settled, stats.lost), (7, 7, 0));

    let jobs: Vec<_> =
        futures_util::future::try_join_all(ids.iter().map(|id| db.pitwheel().job(*id))).await?;
    let states: Vec<State> = jobs.iter().map(|job| job.summary.state).collect();
    use State::{Dead, Done, Waiting};
    assert_eq!(states, [Done, Done, Dead, Waiting, Waiting, Done]);
    assert_eq!(jobs[1].result.as_deref(), Some("\"kept\""));
    assert_eq!(jobs[2].errors[0]["message"], "no such customer");
    assert_eq!(jobs[3].summary.attempt, 0, "a snooze is not counted");
    assert_eq!(
        (&jobs[4].errors[0]["cause"], &jobs[4].errors[0]["worker"]),
        (&"panic".into(), &"far away".into())
    );
    node.stop().await
}

#[tokio::test]
async fn few_jobs_are_spread_over_the_streams() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let (mut one, mut two) = (node.stream(100).await?, node.stream(100).await?);
    db.pitwheel().enqueue_many((0..10).map(work)).await?;
    let (ones, twos) = (one.jobs().await?.len(), two.jobs().await?.len());
    assert_eq!((ones, twos), (5, 5));
    node.stop().await
}

#[tokio::test]
async fn a_stream_never_has_more_than_its_slots() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    db.pitwheel().enqueue_many((0..20).map(work)).await?;
    let mut stream = node.stream(3).await?;
    let mut jobs = stream.jobs().await?;
    for _ in 0..17 {
        assert!(jobs.len() <= 3, "{} jobs at a time", jobs.len());
        assert_eq!(db.count("select count(*) from pitwheel.job where holder is not null").await?, 3);
        let job = jobs.remove(0);
        assert_eq!(stream.complete(&job).await?, v1::Written::Yes);
        jobs.extend(stream.jobs().await?);
    }
    node.stop().await
}

#[tokio::test]
async fn a_report_may_be_repeated() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let id = db.pitwheel().enqueue(work(1)).await?.id;
    let mut stream = node.stream(1).await?;
    let job = stream.jobs().await?.remove(0);
    let progress = || v1::result::Outcome::Progress(v1::Progress { fraction: 0.5, note: "half".into() });
    assert_eq!(stream.report(&job, progress()).await?, v1::Written::Yes);
    assert_eq!(stream.complete(&job).await?, v1::Written::Yes);
    assert_eq!(stream.complete(&job).await?, v1::Written::Lost);
    assert_eq!(stream.report(&job, progress()).await?, v1::Written::Lost);
    let fail = v1::result::Outcome::Fail(v1::Fail { error: "late".into(), ..v1::Fail::default() });
    assert_eq!(stream.report(&job, fail).await?, v1::Written::Lost);
    assert_eq!(db.state(id).await?, Some(State::Done));
    node.stop().await
}

#[tokio::test]
async fn the_last_attempt_that_fails_is_the_last() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let id = db.pitwheel().enqueue(work(1).max_attempts(2)).await?.id;
    let mut stream = node.stream(1).await?;
    let fail = || {
        v1::result::Outcome::Fail(v1::Fail {
            error: "no".into(),
            retry_after: Some(prost_types::Duration::default()),
            ..v1::Fail::default()
        })
    };
    for attempt in 1..=2 {
        let job = stream.jobs().await?.remove(0);
        assert_eq!(job.attempt, attempt);
        assert_eq!(stream.report(&job, fail()).await?, v1::Written::Yes);
    }
    assert_eq!(db.state(id).await?, Some(State::Dead));
    node.stop().await
}

#[tokio::test]
async fn results_may_be_reported_to_another_node() -> Result<()> {
    let db = TestDb::new().await?;
    let (node, other) = (Node::start(db.pitwheel(), LEASE).await?, Node::start(db.pitwheel(), LEASE).await?);
    db.pitwheel().enqueue_many((0..6).map(work)).await?;
    let mut stream = node.stream(2).await?;
    let mut elsewhere = other.stream(1).await?;
    // The other node has a job of its own; the rest comes here, although nothing is ever reported here.
    assert_eq!(elsewhere.jobs().await?.len(), 1);
    for _ in 0..2 {
        let mut jobs = stream.jobs().await?;
        if jobs.len() < 2 {
            jobs.extend(stream.jobs().await?);
        }
        for job in jobs {
            assert_eq!(elsewhere.complete(&job).await?, v1::Written::Yes);
        }
    }
    node.stop().await?;
    other.stop().await
}

#[tokio::test]
async fn what_was_on_its_way_to_a_broken_stream_is_given_back() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    db.pitwheel().enqueue_many((0..4).map(work)).await?;
    let mut stream = node.stream(4).await?;
    until("all are claimed", async || {
        Ok(db.count("select count(*) from pitwheel.job where holder is not null").await? == 4)
    })
    .await?;
    // Of four jobs that were sent the worker has read one batch; the stream breaks, and it says what it holds.
    let kept = stream.jobs().await?.remove(0);
    let (worker_id, mut client) = (stream.worker_id, stream.client.clone());
    drop(stream);
    let holding = vec![v1::Claim { job_id: kept.job_id, fence: kept.fence }];
    let ended = vec![v1::EndedStream { worker_id, holding }];
    client.heartbeat(v1::HeartbeatRequest { worker_ids: vec![], ended }).await?;
    assert_eq!(db.count("select count(*) from pitwheel.job where holder is not null").await?, 1);
    assert_eq!(
        db.count("select sum(attempt + crashes) from pitwheel.job").await?,
        1,
        "nothing is charged for it"
    );
    let results = vec![v1::Result {
        claim: Some(v1::Claim { job_id: kept.job_id, fence: kept.fence }),
        outcome: Some(v1::result::Outcome::Complete(v1::Complete::default())),
    }];
    let answer = client.report_result(v1::ReportResultRequest { results }).await?.into_inner();
    assert_eq!(answer.written, [i32::from(v1::Written::Yes)]);
    let ended = vec![v1::EndedStream { worker_id, holding: vec![] }];
    client.heartbeat(v1::HeartbeatRequest { worker_ids: vec![], ended }).await?;
    assert_eq!(db.count("select count(*) from pitwheel.worker where dead_at is null").await?, 0);
    node.stop().await
}

#[tokio::test]
async fn a_paused_queue_sends_nothing_within_a_second() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let mut stream = node.stream(10).await?;
    db.pitwheel().pause(Some("default")).await?;
    db.pitwheel().enqueue(work(1)).await?;
    // A pause is in force at the next claim, and claims are at most 40 ms apart.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(db.count("select count(*) from pitwheel.job where holder is not null").await?, 0);
    db.pitwheel().resume(Some("default")).await?;
    assert_eq!(stream.jobs().await?.len(), 1);
    node.stop().await
}

#[tokio::test]
async fn a_cancel_reaches_the_handler_at_once_and_with_the_heartbeat_if_no_hint_is_heard() -> Result<()> {
    // So long that no heartbeat comes in time; so short that one does.
    for (lease, hinted) in [(20 * LEASE, true), (SHORT_LEASE, false)] {
        let db = TestDb::new().await?;
        let node = Node::start(db.pitwheel(), lease).await?;
        let id = db.pitwheel().enqueue(work(1)).await?.id;
        let handler = async |_: Work, context: Context| {
            context.cancelled().await;
            Err::<(), _>("stopped")
        };
        let running = start(Worker::remote(&node.url()).queue("default", 1).handle(handler));
        until("it runs", async || Ok(db.state(id).await? == Some(State::Running))).await?;
        if hinted {
            let cancel = v1::CancelJobRequest { job_id: id };
            assert!(!node.jobs().await?.cancel_job(cancel).await?.into_inner().at_once);
        } else {
            let sql = "update pitwheel.job set cancel_requested_at = now()";
            db.client().await?.batch_execute(sql).await?;
        }
        until("it is cancelled", async || Ok(db.state(id).await? == Some(State::Cancelled))).await?;
        running.stop().await?;
        node.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn progress_is_kept_while_the_job_runs() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let id = db.pitwheel().enqueue(work(1)).await?.id;
    let handler = async |_: Work, context: Context| {
        context.progress(0.5, "half");
        context.cancelled().await;
        Ok::<(), String>(())
    };
    let running =
        start(Worker::remote(&node.url()).queue("default", 1).grace(Duration::ZERO).handle(handler));
    until("it is half done", async || {
        Ok(db.pitwheel().job(id).await?.summary.note.as_deref() == Some("half"))
    })
    .await?;
    running.stop().await?;
    assert_eq!(db.state(id).await?, Some(State::Waiting), "what did not finish is released");
    assert_eq!(db.pitwheel().job(id).await?.summary.attempt, 0);
    node.stop().await
}

#[tokio::test]
async fn the_jobs_of_a_silent_worker_are_given_to_others() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), SHORT_LEASE).await?;
    let ids: Vec<i64> =
        db.pitwheel().enqueue_many((0..20).map(work)).await?.iter().map(|job| job.id).collect();
    let stuck = async |_: Work, _: Context| std::future::pending::<Result<(), String>>().await;
    let victim = start(Worker::remote(&node.url()).queue("default", 20).handle(stuck));
    until("it holds them all", async || {
        Ok(db.count("select count(*) from pitwheel.job where holder is not null").await? == 20)
    })
    .await?;
    victim.kill();
    let done = Arc::new(AtomicUsize::new(0));
    let counter = done.clone();
    let handler = move |_: Work, _: Context| {
        counter.fetch_add(1, Ordering::SeqCst);
        std::future::ready(Ok::<(), String>(()))
    };
    let heir = start(Worker::remote(&node.url()).queue("default", 20).handle(handler));
    until("all are done", async || Ok(db.count("select count(*) from pitwheel.job").await? == 0)).await?;
    assert_eq!(done.load(Ordering::SeqCst), ids.len(), "each once");
    heir.stop().await?;
    node.stop().await
}

#[tokio::test]
async fn the_stream_of_a_worker_that_was_declared_dead_ends() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), SHORT_LEASE).await?;
    let mut silent = node.stream(1).await?;
    let mut beating = node.stream(1).await?;
    silent.beating.abort();
    let ended = tokio::time::timeout(PATIENCE, silent.messages.message()).await?;
    assert_eq!(ended.expect_err("nothing was due").code(), Code::Aborted);
    let id = db.job().kind("work").insert().await?;
    assert_eq!(beating.jobs().await?[0].job_id, id, "the other goes on");
    node.stop().await
}

#[tokio::test]
async fn a_node_that_restarts_loses_and_repeats_nothing() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let address = node.address;
    let runs = Arc::new(AtomicUsize::new(0));
    let counter = runs.clone();
    let handler = move |_: Work, _: Context| {
        let counter = counter.clone();
        async move {
            tokio::time::sleep(Duration::from_millis(20)).await; // the job's work
            counter.fetch_add(1, Ordering::SeqCst);
            Ok::<(), String>(())
        }
    };
    let running = start(Worker::remote(&node.url()).queue("default", 10).handle(handler));
    db.pitwheel().enqueue_many((0..500).map(work)).await?;
    until("some are done", async || Ok(runs.load(Ordering::SeqCst) > 50)).await?;
    node.stop().await?;
    let node = Node::start_at(db.pitwheel(), LEASE, address).await?;
    until("all are done", async || Ok(db.count("select count(*) from pitwheel.job").await? == 0)).await?;
    assert_eq!(runs.load(Ordering::SeqCst), 500, "each once");
    let stats = running.stop().await?;
    assert_eq!((stats.settled, stats.lost), (500, 0));
    node.stop().await
}

#[tokio::test]
async fn a_job_that_kills_its_workers_runs_alone_and_is_buried() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), SHORT_LEASE).await?;
    db.job().kind("work").payload(r#"{"n":1}"#).insert().await?;
    let mut stream = node.stream(10).await?;
    let first = stream.jobs().await?;
    let suspect = db.job().kind("work").payload(r#"{"n":2}"#).crashes(2).insert().await?;
    // The only stream is busy: it gets nothing more until it has run empty, then the suspect, and nothing beside it.
    until("the stream is let run empty", async || {
        let id = db.job().kind("work").payload(r#"{"n":3}"#).insert().await?;
        tokio::time::sleep(Duration::from_millis(300)).await; // several polls long: it would have come by now
        Ok(db.state(id).await? == Some(State::Waiting))
    })
    .await?;
    let mut running = first;
    while let Some(job) = running.pop() {
        assert_eq!(stream.complete(&job).await?, v1::Written::Yes);
        if running.is_empty() {
            running = stream.jobs().await?;
        }
        if running[0].job_id == suspect {
            break;
        }
    }
    assert_eq!(running.len(), 1, "the suspect comes alone");
    assert_eq!(db.count("select count(*) from pitwheel.job where holder is not null").await?, 1);
    drop(stream);
    until("it is buried", async || Ok(db.state(suspect).await? == Some(State::Dead))).await?;
    node.stop().await
}
