//! Jobs go to workers over streams and results come back: the promises of the engine, over gRPC.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Result;
use pitwheel::{Context, State, Verdict, Worker};
use pitwheel_proto::v1;
use pitwheel_testkit::{TestDb, WAIT_MAX, Work, start_worker, wait_until, work};
use tokio::sync::Notify;
use tonic::Code;

use crate::support::{Node, claim_of, result};

const LEASE: Duration = Duration::from_secs(30);
/// For tests in which a worker is to be declared dead.
const SHORT_LEASE: Duration = Duration::from_secs(2);

#[tokio::test]
async fn every_verdict_of_a_remote_handler_is_settled_as_that_of_a_local_one() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let ids: Vec<i64> =
        db.pitwheel().enqueue_many((0..6).map(work)).await?.iter().map(|job| job.id).collect();
    let handler = async |job: Work, context: Context| match job.n {
        0 => Ok(Verdict::complete().into()),
        1 => Verdict::complete_with(&"kept").map(Verdict::from).map_err(|error| error.to_string()),
        2 => Ok(Verdict::bury("no such customer")),
        3 => Ok(Verdict::Snooze(Duration::from_secs(3600))),
        4 => panic!("on purpose"),
        _ => context
            .enqueue(work(0))
            .await
            .map(|_| Verdict::complete().into())
            .map_err(|error| error.to_string()),
    };
    let running =
        start_worker(Worker::remote(&node.url()).queue("default", 10).name("far away").handle(handler));
    wait_until("all jobs have run", async || {
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
async fn the_jobs_of_a_message_are_in_the_order_in_which_they_are_to_start() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let mut stream = node.stream(10).await?;
    let priorities = [0, -9, 9, 0, 1];
    let enqueued = db.pitwheel().enqueue_many(priorities.map(|priority| work(0).priority(priority))).await?;
    let sent: Vec<i64> = stream.jobs().await?.iter().map(|job| job.job_id).collect();
    assert_eq!(sent, [2, 4, 0, 3, 1].map(|at| enqueued[at].id));
    node.stop().await
}

#[tokio::test]
async fn a_few_jobs_are_spread_over_all_streams() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let (mut one, mut two) = (node.stream(100).await?, node.stream(100).await?);
    // A claim that began before the second stream was open is for the first one only: this job ends it.
    db.pitwheel().enqueue(work(0)).await?;
    tokio::select! {
        first = one.jobs() => first?,
        first = two.jobs() => first?,
    };
    db.pitwheel().enqueue_many((0..10).map(work)).await?;
    let (ones, twos) = (one.jobs().await?.len(), two.jobs().await?.len());
    assert_eq!((ones, twos), (5, 5));
    node.stop().await
}

#[tokio::test]
async fn a_worker_never_gets_more_jobs_than_its_slots() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    db.pitwheel().enqueue_many((0..20).map(work)).await?;
    let mut stream = node.stream(3).await?;
    let mut jobs = stream.jobs().await?;
    for _ in 0..17 {
        assert!(jobs.len() <= 3, "{} jobs at a time", jobs.len());
        let job = jobs.remove(0);
        assert_eq!(stream.complete(&job).await?, v1::Written::Yes);
        jobs.extend(stream.jobs().await?);
    }
    node.stop().await
}

#[tokio::test]
async fn a_repeated_report_is_recognised_and_changes_nothing() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let id = db.pitwheel().enqueue(work(1)).await?.id;
    let mut stream = node.stream(1).await?;
    let job = stream.jobs().await?.remove(0);
    let progress = || v1::result::Outcome::Progress(v1::Progress { fraction: 0.5, note: "half".into() });
    assert_eq!(stream.report(&job, progress()).await?, v1::Written::Yes);
    assert_eq!(stream.complete(&job).await?, v1::Written::Yes);
    assert_eq!(stream.complete(&job).await?, v1::Written::Already);
    assert_eq!(stream.report(&job, progress()).await?, v1::Written::Lost);
    let fail = v1::result::Outcome::Fail(v1::Fail { error: "late".into(), ..v1::Fail::default() });
    assert_eq!(stream.report(&job, fail).await?, v1::Written::Already);
    assert_eq!(db.state(id).await?, Some(State::Done));
    node.stop().await
}

#[tokio::test]
async fn a_job_that_fails_its_last_attempt_is_dead() -> Result<()> {
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
    // The other node's stream has one job. The rest comes to this stream, although nothing is ever reported to its
    // node.
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

/// The row is locked, so nothing is written. The worker is free all the same.
#[tokio::test]
async fn a_result_for_another_node_frees_its_slot_before_it_is_written() -> Result<()> {
    let db = TestDb::new().await?;
    let (node, other) = (Node::start(db.pitwheel(), LEASE).await?, Node::start(db.pitwheel(), LEASE).await?);
    db.pitwheel().enqueue_many((0..2).map(work)).await?;
    let mut stream = node.stream(1).await?;
    let first = stream.jobs().await?.remove(0);
    let mut client = db.client().await?;
    let lock = client.transaction().await?;
    lock.execute("select from pitwheel.job where id = $1 for update", &[&first.job_id]).await?;
    let results = vec![result(&first, v1::result::Outcome::Complete(v1::Complete::default()))];
    let response = other.workers().await?.report_result(v1::ReportResultRequest { results }).await?;
    assert_eq!(response.into_inner().written, [i32::from(v1::Written::Locked)]);
    assert_eq!(stream.jobs().await?.len(), 1, "the second job");
    drop(lock);
    node.stop().await?;
    other.stop().await
}

#[tokio::test]
async fn jobs_in_transit_to_a_broken_stream_are_released() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    db.pitwheel().enqueue_many((0..4).map(work)).await?;
    let mut stream = node.stream(4).await?;
    wait_until("all are claimed", async || {
        Ok(db.count("select count(*) from pitwheel.job where holder is not null").await? == 4)
    })
    .await?;
    // The worker has read one message of the four jobs that were sent. The stream breaks, and the worker reports what
    // it holds.
    let kept = stream.jobs().await?.remove(0);
    let (worker_id, mut client) = (stream.worker_id, stream.client.clone());
    drop(stream);
    let holding = vec![claim_of(&kept)];
    let ended = vec![v1::EndedStream { worker_id, holding }];
    client.heartbeat(v1::HeartbeatRequest { worker_ids: vec![], ended }).await?;
    assert_eq!(db.count("select count(*) from pitwheel.job where holder is not null").await?, 1);
    assert_eq!(
        db.count("select sum(attempt + crashes) from pitwheel.job").await?,
        1,
        "the broken stream costs its jobs no attempt"
    );
    let results = vec![result(&kept, v1::result::Outcome::Complete(v1::Complete::default()))];
    let response = client.report_result(v1::ReportResultRequest { results }).await?.into_inner();
    assert_eq!(response.written, [i32::from(v1::Written::Yes)]);
    let ended = vec![v1::EndedStream { worker_id, holding: vec![] }];
    client.heartbeat(v1::HeartbeatRequest { worker_ids: vec![], ended }).await?;
    assert_eq!(db.count("select count(*) from pitwheel.worker where dead_at is null").await?, 0);
    node.stop().await
}

#[tokio::test]
async fn jobs_of_a_paused_queue_are_not_sent() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let mut stream = node.stream(10).await?;
    db.pitwheel().pause(Some("default")).await?;
    db.pitwheel().enqueue(work(1)).await?;
    // A pause takes effect at the next claim, and claims are at most 40 ms apart.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(db.count("select count(*) from pitwheel.job where holder is not null").await?, 0);
    db.pitwheel().resume(Some("default")).await?;
    assert_eq!(stream.jobs().await?.len(), 1);
    node.stop().await
}

#[tokio::test]
async fn a_cancel_reaches_the_handler_by_a_hint_or_else_with_the_next_heartbeat() -> Result<()> {
    // With the long lease no heartbeat comes in time; with the short one it does.
    for (lease, hinted) in [(20 * LEASE, true), (SHORT_LEASE, false)] {
        let db = TestDb::new().await?;
        let node = Node::start(db.pitwheel(), lease).await?;
        let id = db.pitwheel().enqueue(work(1)).await?.id;
        let handler = async |_: Work, context: Context| {
            context.cancelled().await;
            Err::<(), _>("stopped")
        };
        let running = start_worker(Worker::remote(&node.url()).queue("default", 1).handle(handler));
        wait_until("it runs", async || Ok(db.state(id).await? == Some(State::Running))).await?;
        if hinted {
            let cancel = v1::CancelJobRequest { job_id: id };
            assert!(!node.jobs().await?.cancel_job(cancel).await?.into_inner().at_once);
        } else {
            let sql = "update pitwheel.job set cancel_requested_at = now()";
            db.client().await?.batch_execute(sql).await?;
        }
        wait_until("it is cancelled", async || Ok(db.state(id).await? == Some(State::Cancelled))).await?;
        running.stop().await?;
        node.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn progress_is_written_while_the_job_runs() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let id = db.pitwheel().enqueue(work(1)).await?.id;
    let handler = async |_: Work, context: Context| {
        context.progress(0.5, "half");
        context.cancelled().await;
        Ok::<(), String>(())
    };
    let running =
        start_worker(Worker::remote(&node.url()).queue("default", 1).grace(Duration::ZERO).handle(handler));
    wait_until("its progress is written", async || {
        Ok(db.pitwheel().job(id).await?.summary.note.as_deref() == Some("half"))
    })
    .await?;
    running.stop().await?;
    assert_eq!(db.state(id).await?, Some(State::Waiting), "a job that did not finish is released");
    assert_eq!(db.pitwheel().job(id).await?.summary.attempt, 0);
    node.stop().await
}

#[tokio::test]
async fn the_last_note_of_a_short_job_is_in_its_history() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let id = db.pitwheel().enqueue(work(1)).await?.id;
    let handler = async |_: Work, context: Context| {
        context.progress(1.0, "all of it");
        Ok::<(), String>(())
    };
    let running = start_worker(Worker::remote(&node.url()).queue("default", 1).handle(handler));
    wait_until("it is done", async || Ok(db.state(id).await? == Some(State::Done))).await?;
    assert_eq!(db.pitwheel().job(id).await?.summary.note.as_deref(), Some("all of it"));
    running.stop().await?;
    node.stop().await
}

#[tokio::test]
async fn the_jobs_of_a_silent_worker_are_given_to_others() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), SHORT_LEASE).await?;
    let ids: Vec<i64> =
        db.pitwheel().enqueue_many((0..20).map(work)).await?.iter().map(|job| job.id).collect();
    let endless = async |_: Work, _: Context| std::future::pending::<Result<(), String>>().await;
    let silent = start_worker(Worker::remote(&node.url()).queue("default", 20).handle(endless));
    wait_until("it holds all jobs", async || {
        Ok(db.count("select count(*) from pitwheel.job where holder is not null").await? == 20)
    })
    .await?;
    silent.kill();
    let done = Arc::new(AtomicUsize::new(0));
    let counter = done.clone();
    let handler = move |_: Work, _: Context| {
        counter.fetch_add(1, Ordering::SeqCst);
        std::future::ready(Ok::<(), String>(()))
    };
    let second = start_worker(Worker::remote(&node.url()).queue("default", 20).handle(handler));
    wait_until("all are done", async || Ok(db.count("select count(*) from pitwheel.job").await? == 0))
        .await?;
    assert_eq!(done.load(Ordering::SeqCst), ids.len(), "each job ran once");
    second.stop().await?;
    node.stop().await
}

#[tokio::test]
async fn the_stream_of_a_worker_that_was_declared_dead_ends() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), SHORT_LEASE).await?;
    let mut silent = node.stream(1).await?;
    let mut other = node.stream(1).await?;
    silent.heartbeats.abort();
    let ended = tokio::time::timeout(WAIT_MAX, silent.messages.message()).await?;
    assert_eq!(ended.expect_err("nothing was due").code(), Code::Aborted);
    let id = db.job().kind("work").insert().await?;
    assert_eq!(other.jobs().await?[0].job_id, id, "the other stream continues");
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
    let running = start_worker(Worker::remote(&node.url()).queue("default", 10).handle(handler));
    db.pitwheel().enqueue_many((0..500).map(work)).await?;
    wait_until("some are done", async || Ok(runs.load(Ordering::SeqCst) > 50)).await?;
    node.stop().await?;
    let node = Node::start_at(db.pitwheel(), LEASE, address).await?;
    wait_until("all are done", async || Ok(db.count("select count(*) from pitwheel.job").await? == 0))
        .await?;
    assert_eq!(runs.load(Ordering::SeqCst), 500, "each job ran once");
    let stats = running.stop().await?;
    assert_eq!((stats.settled, stats.lost), (500, 0));
    node.stop().await
}

#[tokio::test]
async fn a_job_that_crashed_twice_runs_alone_and_is_buried_after_the_third_crash() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), SHORT_LEASE).await?;
    db.job().kind("work").payload(r#"{"n":1}"#).insert().await?;
    let mut stream = node.stream(10).await?;
    let first = stream.jobs().await?;
    let suspect = db.job().kind("work").payload(r#"{"n":2}"#).crashes(2).insert().await?;
    // The only stream is busy: it gets nothing more until all its jobs are settled, then the suspect alone.
    wait_until("the stream gets no more jobs", async || {
        let id = db.job().kind("work").payload(r#"{"n":3}"#).insert().await?;
        tokio::time::sleep(Duration::from_millis(300)).await; // several polls: the job would have been sent by now
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
    assert_eq!(running.len(), 1, "the suspect is sent alone");
    assert_eq!(db.count("select count(*) from pitwheel.job where holder is not null").await?, 1);
    drop(stream);
    wait_until("it is buried", async || Ok(db.state(suspect).await? == Some(State::Dead))).await?;
    node.stop().await
}

#[tokio::test]
async fn a_suspect_waits_for_the_other_workers_of_its_process() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let (gate, running, beside) =
        (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (open, count, seen) = (gate.clone(), running.clone(), beside.clone());
    let handler = move |job: Work, _: Context| {
        let (open, count, seen) = (open.clone(), count.clone(), seen.clone());
        async move {
            let others = count.fetch_add(1, Ordering::SeqCst);
            match job.n {
                1 => open.notified().await,
                2 => seen.store(others, Ordering::SeqCst),
                _ => {}
            }
            count.fetch_sub(1, Ordering::SeqCst);
            Ok::<_, String>(())
        }
    };
    let start =
        |queue: &str| start_worker(Worker::remote(&node.url()).queue(queue, 2).handle(handler.clone()));
    let (first, second) = (start("default"), start("other"));
    db.job().kind("work").payload(r#"{"n":1}"#).queue("other").insert().await?;
    wait_until("a job runs", async || Ok(running.load(Ordering::SeqCst) == 1)).await?;
    let suspect = db.job().kind("work").payload(r#"{"n":2}"#).crashes(2).insert().await?;
    wait_until("the other worker gets no more jobs", async || {
        let id = db.job().kind("work").payload(r#"{"n":3}"#).queue("other").insert().await?;
        tokio::time::sleep(Duration::from_millis(300)).await; // several polls: the job would have been sent by now
        Ok(db.state(id).await? == Some(State::Waiting))
    })
    .await?;
    gate.notify_one();
    wait_until("the suspect is done", async || Ok(db.state(suspect).await? == Some(State::Done))).await?;
    assert_eq!(beside.load(Ordering::SeqCst), 0, "jobs ran beside it");
    first.stop().await?;
    second.stop().await?;
    node.stop().await
}
