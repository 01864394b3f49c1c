//! Reports whose response is lost, that come late, or that go to another node.

use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use futures_util::future::try_join_all;
use pitwheel::State;
use pitwheel_proto::v1;
use pitwheel_proto::v1::result::Outcome;
use pitwheel_proto::v1::worker_service_client::WorkerServiceClient;
use pitwheel_testkit::{TestDb, start_worker, wait_until, work};

use crate::gate::Gate;
use crate::proxy::{Link, Proxy};
use crate::queries::{DONE, HELD, LEASE, LONG_LEASE, SETTLED_TWICE, SHORT_LEASE};
use crate::support::{Node, WorkerStream, result};

#[tokio::test]
async fn a_worker_that_ends_reports_the_results_of_locked_jobs() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LONG_LEASE).await?;
    let gate = Gate::open_for(0);
    let running = start_worker(gate.worker(&node.url(), 1).grace(Duration::ZERO));
    db.pitwheel().enqueue(work(0)).await?;
    wait_until("it runs", async || Ok(gate.running() == 1)).await?;
    let mut client = db.client().await?;
    let lock = client.transaction().await?;
    lock.execute("select from pitwheel.job for update", &[]).await?;
    gate.let_pass(1);
    wait_until("it has ended", async || Ok(gate.running() == 0)).await?;
    let stopping = tokio::spawn(running.stop());
    tokio::time::sleep(Duration::from_secs(1)).await; // its result meets the lock meanwhile, and the grace time is over
    lock.rollback().await?;
    let stats = stopping.await??;
    assert_eq!((stats.settled, stats.lost, db.count(DONE).await?), (1, 0, 1));
    node.stop().await
}

#[tokio::test]
async fn a_job_whose_report_got_no_response_is_completed_once_and_not_run_again() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let proxy = Proxy::to(node.address).await?;
    let gate = Gate::open_for(0);
    let running = gate.start_with_five_jobs(&db, &proxy.url(), 5).await?;
    proxy.set(Link::NoResponses);
    gate.let_pass(100);
    wait_until("all five are done", async || Ok(db.count(DONE).await? == 5)).await?;
    proxy.set(Link::Cut);
    db.pitwheel().enqueue(work(5)).await?;
    wait_until("the next job is done", async || Ok(db.count(DONE).await? == 6)).await?;
    let stats = running.stop().await?;
    assert_eq!((gate.runs(), stats.started), (6, 6));
    assert_eq!((stats.settled, stats.lost), (6, 0), "the repeated report is recognised");
    assert_eq!(db.count(SETTLED_TWICE).await?, 0);
    node.stop().await
}

#[tokio::test]
async fn a_report_that_got_no_response_is_recognised_when_repeated_and_changes_nothing() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let proxy = Proxy::to(node.address).await?;
    db.pitwheel().enqueue_many((0..5).map(work)).await?;
    let mut stream = WorkerStream::open(WorkerServiceClient::connect(proxy.url()).await?, 5).await?;
    let jobs = stream.jobs_at_least(5).await?;
    let hour = prost_types::Duration { seconds: 3600, nanos: 0 };
    let outcomes = [
        Outcome::Complete(v1::Complete::default()),
        Outcome::Fail(v1::Fail { error: "no".into(), retry_after: Some(hour), ..v1::Fail::default() }),
        Outcome::Bury(v1::Bury { reason: "never".into() }),
        Outcome::Snooze(v1::Snooze { delay: Some(hour) }),
        Outcome::Complete(v1::Complete { forget: true, ..v1::Complete::default() }),
    ];
    let results = jobs.iter().zip(outcomes).map(|(job, outcome)| result(job, outcome)).collect();
    let report = v1::ReportResultRequest { results };

    proxy.set(Link::NoResponses);
    let unanswered = stream.client.report_result(report.clone());
    let cut_when_written = async {
        wait_until("the report is written", async || Ok(db.count(HELD).await? == 0)).await?;
        proxy.set(Link::Cut);
        Ok::<_, anyhow::Error>(())
    };
    let (unanswered, cut) = tokio::join!(unanswered, cut_when_written);
    cut?;
    assert!(unanswered.is_err(), "the response arrived");

    let response = node.workers().await?.report_result(report.clone()).await?.into_inner();
    assert_eq!(response.written, [i32::from(v1::Written::Already); 5]);
    // Another node knows only what is in the history.
    let other = Node::start(db.pitwheel(), LEASE).await?;
    let response = other.workers().await?.report_result(report).await?.into_inner();
    let (already, lost) = (i32::from(v1::Written::Already), i32::from(v1::Written::Lost));
    assert_eq!(response.written, [already, lost, already, lost, lost]);
    other.stop().await?;
    let jobs = try_join_all(jobs[..4].iter().map(|job| db.pitwheel().job(job.job_id))).await?;
    let kept = jobs
        .iter()
        .map(|job| (job.summary.state, job.summary.attempt, job.errors.as_array().map_or(0, Vec::len)));
    let (done, failed) = ((State::Done, 1, 0), (State::Waiting, 1, 1));
    let (buried, snoozed) = ((State::Dead, 1, 1), (State::Waiting, 0, 0));
    assert_eq!(kept.collect::<Vec<_>>(), [done, failed, buried, snoozed]);
    node.stop().await
}

#[tokio::test]
async fn a_report_that_is_repeated_while_it_is_written_is_not_lost() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    db.pitwheel().enqueue_many((0..9).map(work)).await?;
    let mut stream = node.stream(9).await?;
    let jobs = stream.jobs_at_least(9).await?;
    let hour = prost_types::Duration { seconds: 3600, nanos: 0 };
    let snooze = || vec![result(&jobs[0], Outcome::Snooze(v1::Snooze { delay: Some(hour) }))];
    // The followers of the others have the key of a job that is not committed. Their endings are written after the first job was put back,
    // and wait two seconds in all.
    let mut by_hand = db.client().await?;
    let lock = by_hand.transaction().await?;
    lock.execute("select pitwheel.enqueue('next', key => 'key')", &[]).await?;
    let next = v1::NewJob { kind: "next".into(), key: Some("key".into()), ..v1::NewJob::default() };
    let complete = v1::Complete { then: vec![next], ..v1::Complete::default() };
    let complete = |job| result(job, Outcome::Complete(complete.clone()));
    let results = snooze().into_iter().chain(jobs[1..].iter().map(complete)).collect();
    let mut client = stream.client.clone();
    let mut first = pin!(client.report_result(v1::ReportResultRequest { results }));
    let put_back = wait_until("it is put back", async || Ok(db.count(HELD).await? == 8));
    tokio::select! {
        _ = &mut first => bail!("the report was written before it could be repeated"),
        put_back = put_back => put_back?,
    }
    let repeated = v1::ReportResultRequest { results: snooze() };
    let response = stream.client.report_result(repeated.clone()).await?.into_inner();
    assert_eq!(response.written, [i32::from(v1::Written::Locked)], "it is to be repeated");
    let (yes, locked) = (i32::from(v1::Written::Yes), i32::from(v1::Written::Locked));
    let mut expected = vec![locked; 9];
    expected[0] = yes;
    assert_eq!(first.await?.into_inner().written, expected);
    let response = stream.client.report_result(repeated).await?.into_inner();
    assert_eq!(response.written, [i32::from(v1::Written::Already)]);
    lock.rollback().await?;
    node.stop().await
}

#[tokio::test]
async fn a_stream_whose_heartbeats_and_reports_go_to_another_node_continues() -> Result<()> {
    let db = TestDb::new().await?;
    let (near, far) =
        (Node::start(db.pitwheel(), SHORT_LEASE).await?, Node::start(db.pitwheel(), SHORT_LEASE).await?);
    let mut stream = near.stream(10).await?;
    stream.client = far.workers().await?;
    stream.heartbeats.abort();
    db.pitwheel().enqueue_many((0..50).map(work)).await?;
    let (mut client, worker_ids) = (stream.client.clone(), vec![stream.worker_id]);
    let heartbeats = async {
        loop {
            let heartbeat = v1::HeartbeatRequest { worker_ids: worker_ids.clone(), ended: vec![] };
            ensure!(
                client.heartbeat(heartbeat).await?.into_inner().dead_worker_ids.is_empty(),
                "declared dead"
            );
            tokio::time::sleep(SHORT_LEASE / 6).await; // the interval that the server asks for
        }
    };
    let completed = async {
        let (begun, mut seen) = (Instant::now(), Vec::new());
        let mut enqueued = 50;
        while seen.len() < enqueued {
            let jobs = stream.jobs().await?;
            seen.extend(jobs.iter().map(|job| job.job_id));
            for job in &jobs {
                ensure!(stream.complete(job).await? == v1::Written::Yes, "job {} was lost", job.job_id);
            }
            // Long enough to need heartbeats.
            if begun.elapsed() < 2 * SHORT_LEASE {
                enqueued += db.pitwheel().enqueue_many(jobs.iter().map(|_| work(0))).await?.len();
            }
        }
        let settled = seen.len();
        ensure!(begun.elapsed() > SHORT_LEASE, "too short to need heartbeats");
        seen.sort_unstable();
        seen.dedup();
        Ok((seen.len(), settled))
    };
    let (different, settled) = tokio::select! {
        different = completed => different?,
        failed = heartbeats => failed?,
    };
    assert_eq!(different, settled, "no job was sent twice");
    let done = usize::try_from(db.count(DONE).await?)?;
    assert_eq!((done, db.count(SETTLED_TWICE).await?), (settled, 0));
    near.stop().await?;
    far.stop().await
}

#[tokio::test]
async fn of_two_reports_for_one_job_the_later_claim_is_written_and_the_earlier_is_lost() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let mut stream = node.stream(1).await?;
    // Reports of all workers are written together, so that of the earlier holder may be written with that of the later.
    for (late, order) in [(0, "late first"), (1, "late last")] {
        db.pitwheel().enqueue(work(0)).await?;
        let first = stream.jobs().await?.remove(0);
        let release = Outcome::Release(v1::Release {});
        assert_eq!(stream.report(&first, release).await?, v1::Written::Yes);
        let second = stream.jobs().await?.remove(0);
        assert_eq!(first.job_id, second.job_id);
        let kept = v1::Complete { result: Some("1".into()), ..v1::Complete::default() };
        let complete = |job| result(job, Outcome::Complete(kept.clone()));
        let mut results = vec![complete(&first), complete(&second)];
        results.rotate_left(late);
        let response = stream.client.report_result(v1::ReportResultRequest { results }).await?.into_inner();
        let mut expected = [i32::from(v1::Written::Lost), i32::from(v1::Written::Yes)];
        expected.rotate_left(late);
        assert_eq!(response.written, expected, "{order}");
    }
    node.stop().await
}

#[tokio::test]
async fn a_report_that_names_another_worker_is_lost_and_one_that_names_none_is_written() -> Result<()> {
    let db = TestDb::new().await?;
    let (node, other) = (Node::start(db.pitwheel(), LEASE).await?, Node::start(db.pitwheel(), LEASE).await?);
    let mut stream = node.stream(6).await?;
    db.pitwheel().enqueue_many((0..6).map(work)).await?;
    let jobs = stream.jobs_at_least(6).await?;
    let complete = || Outcome::Complete(v1::Complete::default());
    // Through the node that sent the jobs, and through one that did not.
    for (client, jobs) in
        [(&mut node.workers().await?, &jobs[..3]), (&mut other.workers().await?, &jobs[3..])]
    {
        assert!(jobs.iter().all(|job| job.worker_id == stream.worker_id));
        let mut report = async |job: &v1::Assignment, worker_id, outcome| {
            let results = vec![result(&v1::Assignment { worker_id, ..job.clone() }, outcome)];
            let response = client.report_result(v1::ReportResultRequest { results }).await?.into_inner();
            Ok::<_, anyhow::Error>(v1::Written::try_from(response.written[0])?)
        };
        // After a failover that lost a claim, another worker has its fence.
        let stranger = stream.worker_id + 1;
        let outcomes = [
            complete(),
            Outcome::Fail(v1::Fail::default()),
            Outcome::Release(v1::Release {}),
            Outcome::Progress(v1::Progress::default()),
        ];
        for outcome in outcomes {
            let written = report(&jobs[0], stranger, outcome.clone()).await?;
            assert_eq!(written, v1::Written::Lost, "{outcome:?}");
        }
        let hour = prost_types::Duration { seconds: 3600, nanos: 0 };
        let snooze = Outcome::Snooze(v1::Snooze { delay: Some(hour) });
        assert_eq!(report(&jobs[0], stream.worker_id, complete()).await?, v1::Written::Yes);
        assert_eq!(report(&jobs[1], 0, complete()).await?, v1::Written::Yes);
        assert_eq!(report(&jobs[2], 0, snooze).await?, v1::Written::Yes);
    }
    assert_eq!((db.count(DONE).await?, db.count(HELD).await?), (4, 0));
    node.stop().await?;
    other.stop().await
}
