//! Streams go on, whatever happens to other jobs, other streams and other nodes.

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use pitwheel::{Context, NewPipeline, Role, State, Verdict, Worker, WorkerCommand};
use pitwheel_proto::v1;
use pitwheel_proto::v1::worker_service_client::WorkerServiceClient;
use pitwheel_testkit::{Http, TestDb, Work, start_worker, wait_until, work};
use tokio::sync::{Barrier, Notify};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;
use tonic::Code;
use tonic::transport::Channel;

use crate::support::{Node, WorkerStream, result, stream_request};

const LEASE: Duration = Duration::from_secs(30);
/// A hundred times ten jobs. Served at once, they need a second or two; a stream that waits for comparisons with the database needs
/// more than ten times as long.
const JOBS: usize = 1000;
/// Half of the time for which a stream waits for a suspect.
const GOES_ON_WITHIN: Duration = Duration::from_secs(5);

/// Enqueues a job, and completes it at the stream that gets it. Returns whether that is the first of the two.
async fn run_next(db: &TestDb, one: &mut WorkerStream, two: &mut WorkerStream) -> Result<bool> {
    db.job().kind("work").insert().await?;
    tokio::select! {
        jobs = one.jobs() => {
            one.complete(&jobs?[0]).await?;
            Ok(true)
        }
        jobs = two.jobs() => {
            two.complete(&jobs?[0]).await?;
            Ok(false)
        }
    }
}

#[tokio::test]
async fn one_stream_waits_for_a_suspect_until_it_is_cancelled_and_the_others_go_on() -> Result<()> {
    /// So many jobs in a row get to the second stream only if the first one waits: it is asked first.
    const IN_A_ROW: usize = 20;
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    // The first has one job that does not end, the second has two: so the first one waits.
    let mut one = node.stream(10).await?;
    db.pitwheel().enqueue_many((0..10).map(work)).await?;
    let jobs = one.jobs_at_least(10).await?;
    let mut two = node.stream(10).await?;
    db.pitwheel().enqueue_many((0..2).map(work)).await?;
    two.jobs_at_least(2).await?;
    for job in &jobs[1..] {
        one.complete(job).await?;
    }
    let suspect = db.job().kind("work").crashes(2).insert().await?;
    let mut in_a_row = 0;
    while in_a_row < IN_A_ROW {
        in_a_row = if run_next(&db, &mut one, &mut two).await? { 0 } else { in_a_row + 1 };
    }
    assert_eq!(db.state(suspect).await?, Some(State::Waiting), "it does not run beside other jobs");
    db.pitwheel().cancel(suspect).await?;
    let cancelled_at = Instant::now();
    while !run_next(&db, &mut one, &mut two).await? {}
    assert!(cancelled_at.elapsed() < GOES_ON_WITHIN, "before the limit of the wait");
    node.stop().await
}

#[tokio::test]
async fn a_quiet_stream_does_not_slow_down_the_others() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let mut stream = node.stream(10).await?;
    let usual = complete_jobs(&db, &mut stream, None).await?;
    let quiet = node.stream(10).await?;
    assert!(db.pitwheel().command_worker(quiet.worker_id, WorkerCommand::Quiet).await?);
    let took = complete_jobs(&db, &mut stream, None).await?;
    assert!(took < most(usual), "{took:?} instead of {usual:?}");
    db.pitwheel().command_worker(quiet.worker_id, WorkerCommand::Resume).await?;
    let mut resumed = quiet;
    // More than the other stream has slots for.
    db.pitwheel().enqueue_many((0..20).map(work)).await?;
    assert!(!resumed.jobs().await?.is_empty(), "a resumed stream gets jobs again");
    node.stop().await
}

#[tokio::test]
async fn the_open_stream_of_a_dead_worker_does_not_slow_down_the_others() -> Result<()> {
    let db = TestDb::new().await?;
    let (node, other) = (Node::start(db.pitwheel(), LEASE).await?, Node::start(db.pitwheel(), LEASE).await?);
    let mut stream = node.stream(10).await?;
    let usual = complete_jobs(&db, &mut stream, None).await?;
    // Its connection is half open, and its worker has connected to the other node.
    let mut dead = node.stream(10).await?;
    dead.heartbeats.abort();
    let ended = vec![v1::EndedStream { worker_id: dead.worker_id, holding: Vec::new() }];
    other.workers().await?.heartbeat(v1::HeartbeatRequest { worker_ids: Vec::new(), ended }).await?;
    assert_eq!(db.count("select count(*) from pitwheel.worker where dead_at is not null").await?, 1);
    let took = complete_jobs(&db, &mut stream, None).await?;
    assert!(took < most(usual), "{took:?} instead of {usual:?}");
    let ended = dead.messages.message().await.expect_err("its worker is dead");
    assert_eq!(ended.code(), Code::Aborted, "{ended:?}");
    node.stop().await?;
    other.stop().await
}

/// How long it may take what usually takes so long, by chance.
fn most(usual: Duration) -> Duration {
    usual * 4 + Duration::from_secs(5)
}

/// Enqueues many jobs and completes them, through the stream's own node or another one. Returns how long that took.
async fn complete_jobs(
    db: &TestDb,
    stream: &mut WorkerStream,
    mut elsewhere: Option<&mut WorkerServiceClient<Channel>>,
) -> Result<Duration> {
    let sql = "insert into pitwheel.job (run_at, enqueued_at, kind, queue, payload, priority, max_attempts)
        select now() - interval '10 seconds', now(), 'work', 'default', '{}', 0, 20 from generate_series(1, $1::int)";
    db.client().await?.execute(sql, &[&i32::try_from(JOBS)?]).await?;
    let begun = Instant::now();
    let mut done = 0;
    while done < JOBS {
        done += complete_all(stream, elsewhere.as_deref_mut()).await?;
    }
    Ok(begun.elapsed())
}

/// Completes the jobs of the next message, through the stream's own node or another one. Returns how many they were.
async fn complete_all(
    stream: &mut WorkerStream,
    elsewhere: Option<&mut WorkerServiceClient<Channel>>,
) -> Result<usize> {
    let jobs = stream.jobs().await?;
    let complete = |job| result(job, v1::result::Outcome::Complete(v1::Complete::default()));
    let results = jobs.iter().map(complete).collect();
    let client = elsewhere.unwrap_or(&mut stream.client);
    let written = client.report_result(v1::ReportResultRequest { results }).await?.into_inner().written;
    assert!(written.iter().all(|written| *written == i32::from(v1::Written::Yes)), "{written:?}");
    Ok(jobs.len())
}

#[tokio::test]
async fn slots_come_back_at_once_when_results_go_to_another_node() -> Result<()> {
    let db = TestDb::new().await?;
    let (node, other) = (Node::start(db.pitwheel(), LEASE).await?, Node::start(db.pitwheel(), LEASE).await?);
    let mut stream = node.stream(10).await?;
    let mut elsewhere = other.workers().await?;
    let usual = complete_jobs(&db, &mut stream, None).await?;
    let took = complete_jobs(&db, &mut stream, Some(&mut elsewhere)).await?;
    assert!(took < most(usual), "{took:?} instead of {usual:?}");
    node.stop().await?;
    other.stop().await
}

#[tokio::test]
async fn a_job_that_is_retried_through_another_node_keeps_no_slot_of_its_first_claim() -> Result<()> {
    let db = TestDb::new().await?;
    let (node, other) = (Node::start(db.pitwheel(), LEASE).await?, Node::start(db.pitwheel(), LEASE).await?);
    let mut stream = node.stream(3).await?;
    let mut elsewhere = other.workers().await?;
    db.pitwheel().enqueue(work(1)).await?;
    for _ in 0..2 {
        let job = stream.jobs().await?.remove(0);
        let after = Some(prost_types::Duration::default());
        let fail = v1::Fail { error: "again".into(), retry_after: after, ..v1::Fail::default() };
        let results = vec![result(&job, v1::result::Outcome::Fail(fail))];
        let written =
            elsewhere.report_result(v1::ReportResultRequest { results }).await?.into_inner().written;
        assert_eq!(written, [i32::from(v1::Written::Yes)]);
    }
    db.pitwheel().enqueue_many((0..2).map(work)).await?;
    assert_eq!(stream.jobs_at_least(3).await?.len(), 3, "all three slots are usable");
    node.stop().await?;
    other.stop().await
}

#[tokio::test]
async fn a_stream_ends_only_when_the_jobs_that_it_never_got_are_released() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let mut stream = node.stream(1).await?;
    let id = db.pitwheel().enqueue(work(1)).await?.id;
    stream.jobs().await?;
    let (worker_id, mut client) = (stream.worker_id, node.workers().await?);
    drop(stream);
    let mut other = db.client().await?;
    let lock = other.transaction().await?;
    lock.execute("select from pitwheel.job where id = $1 for update", &[&id]).await?;

    let ended = vec![v1::EndedStream { worker_id, holding: Vec::new() }];
    let request = v1::HeartbeatRequest { worker_ids: Vec::new(), ended };
    let refused = client.heartbeat(request.clone()).await.expect_err("its job is locked");
    assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    lock.rollback().await?;
    client.heartbeat(request).await?;
    let unharmed = "select count(*) from pitwheel.job where holder is null and crashes = 0 and attempt = 0";
    assert_eq!(db.count(unharmed).await?, 1);
    assert_eq!(db.count("select count(*) from pitwheel.worker where dead_at is null").await?, 0);
    node.stop().await
}

/// A locked table, and callers that take every connection of the API.
#[tokio::test]
async fn probes_and_metrics_wait_for_no_lock_and_no_caller() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let http = Http::new(node.address);
    let mut other = db.client().await?;
    let lock = other.transaction().await?;
    lock.batch_execute("lock table pitwheel.job in access exclusive mode").await?;
    // The calls of one token leave some connections to others.
    let secret = db.pitwheel().create_token("viewer", Role::Viewer, None).await?.1;
    let callers = [http.clone(), http.token(&secret)];
    let calls: Vec<_> = (0..20)
        .map(|call| {
            let http = callers[call % callers.len()].clone();
            AbortOnDropHandle::new(tokio::spawn(async move { http.get("/api/v1/jobs").await }))
        })
        .collect();
    let waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
    wait_until("the calls have all connections", async || Ok(db.count(waiting).await? >= 8)).await?;

    assert_eq!(timeout(GOES_ON_WITHIN, http.get("/readyz")).await??.status, 200);
    let metrics = timeout(GOES_ON_WITHIN, http.get("/metrics")).await??;
    assert!(metrics.text.contains("pitwheel_build_info") && metrics.text.contains("pitwheel_schema_version"));
    lock.rollback().await?;
    for call in calls {
        assert_eq!(call.await??.status, 200);
    }
    node.stop().await
}

/// Nearly the largest JSON value.
fn large() -> String {
    format!("\"{}\"", "x".repeat(250 * 1024))
}

#[tokio::test]
async fn large_payloads_arrive_in_messages_that_every_client_accepts() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    // 25 MB, and a client accepts messages of 4 MiB.
    for _ in 0..100 {
        db.job().kind("work").payload(&large()).insert().await?;
    }
    let mut stream = node.stream(100).await?;
    assert_eq!(stream.jobs_at_least(100).await?.len(), 100);
    node.stop().await
}

#[tokio::test]
async fn large_results_of_parents_arrive_in_messages_that_every_client_accepts() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let parent = NewPipeline::new("wide").step("parent", work(0));
    let wide = (1..=100).fold(parent, |wide, n| wide.step(format!("s{n}"), work(n)).after(["parent"]));
    db.pitwheel().pipelines().create(wide).await?;
    let mut stream = node.stream(100).await?;
    let parent = stream.jobs().await?.remove(0);
    let complete = v1::Complete { result: Some(large()), ..v1::Complete::default() };
    stream.report(&parent, v1::result::Outcome::Complete(complete)).await?;
    assert_eq!(stream.jobs_at_least(100).await?.len(), 100, "each has the result of its parent");
    node.stop().await
}

#[tokio::test]
async fn large_results_of_a_remote_worker_are_reported_in_parts() -> Result<()> {
    const JOBS: usize = 150;
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    // 37 MB, and a server accepts messages of 32 MiB at most.
    db.pitwheel().enqueue_many((0..JOBS as i64).map(work)).await?;
    let all_run = Arc::new(Barrier::new(JOBS));
    let handler = move |_: Work, _: Context| {
        let all_run = all_run.clone();
        async move {
            all_run.wait().await;
            Verdict::complete_with(&"x".repeat(250 * 1024))
                .map(Verdict::from)
                .map_err(|error| error.to_string())
        }
    };
    let running = start_worker(Worker::remote(&node.url()).queue("default", JOBS).handle(handler));
    wait_until("all are done", async || Ok(db.count("select count(*) from pitwheel.job").await? == 0))
        .await?;
    let stats = running.stop().await?;
    assert_eq!((stats.settled, stats.lost), (JOBS as u64, 0));
    node.stop().await
}

#[tokio::test]
async fn an_invalid_result_is_refused_with_its_reason_and_the_others_are_written() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    db.pitwheel().enqueue_many((0..3).map(work)).await?;
    let mut stream = node.stream(3).await?;
    let jobs = stream.jobs_at_least(3).await?;
    let complete = |json: &str| {
        v1::result::Outcome::Complete(v1::Complete { result: Some(json.into()), ..v1::Complete::default() })
    };
    let results = vec![
        result(&jobs[0], complete("1")),
        result(&jobs[1], complete("no")),
        result(&jobs[2], complete("3")),
    ];
    let response = stream.client.report_result(v1::ReportResultRequest { results }).await?.into_inner();
    let [yes, refused] = [v1::Written::Yes, v1::Written::Refused].map(i32::from);
    assert_eq!(response.written, [yes, refused, yes]);
    assert_eq!(response.problems.len(), 3);
    assert!(response.problems[1].contains("JSON"), "{:?}", response.problems);
    assert_eq!((&*response.problems[0], &*response.problems[2]), ("", ""));
    assert_eq!(db.state(jobs[1].job_id).await?, Some(State::Running), "its claim still holds");
    assert_eq!(stream.complete(&jobs[1]).await?, v1::Written::Yes);
    node.stop().await
}

#[tokio::test]
async fn a_remote_worker_reports_a_refused_result_as_failed() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let ids: Vec<i64> =
        db.pitwheel().enqueue_many((0..10).map(work)).await?.iter().map(|job| job.id).collect();
    let all_run = Arc::new(Barrier::new(10));
    let handler = move |job: Work, _: Context| {
        let all_run = all_run.clone();
        async move {
            all_run.wait().await;
            // The server refuses a time span of more than a hundred years.
            let long = Duration::from_secs(200 * 366 * 24 * 3600);
            Ok::<_, String>(if job.n == 5 { Verdict::Snooze(long) } else { Verdict::complete().into() })
        }
    };
    let running = start_worker(Worker::remote(&node.url()).queue("default", 10).handle(handler));
    let settled = async || Ok(db.count("select count(*) from pitwheel.job where attempt = 0").await? == 0);
    wait_until("all are claimed", settled).await?;
    wait_until("all are settled", async || {
        Ok(db.count("select count(*) from pitwheel.job where holder is not null").await? == 0)
    })
    .await?;
    running.stop().await?;
    let job = db.pitwheel().job(ids[5]).await?;
    assert_eq!(job.summary.state, State::Waiting, "it is tried again");
    assert!(
        job.errors[0]["message"].as_str().is_some_and(|error| error.contains("refused")),
        "{}",
        job.errors
    );
    assert_eq!(db.count("select count(*) from pitwheel.job").await?, 1);
    node.stop().await
}

#[tokio::test]
async fn a_suspect_runs_alone_in_its_process_on_all_streams() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let client = node.workers().await?;
    let open = |queue: &str| {
        let request = v1::StreamJobsRequest {
            queues: vec![queue.into()],
            process: "one process".into(),
            ..stream_request(1)
        };
        WorkerStream::open_with(client.clone(), request)
    };
    let (mut stream, mut other) = (open("default").await?, open("other").await?);
    db.job().kind("work").queue("other").insert().await?;
    let beside = other.jobs().await?.remove(0);
    let suspect = db.job().kind("work").crashes(2).insert().await?;
    let next = db.job().kind("work").queue("other").insert().await?;
    tokio::time::sleep(Duration::from_secs(3)).await; // several looks back: the suspect would have been sent by now
    assert_eq!(db.state(suspect).await?, Some(State::Waiting), "a job runs in the same process");
    assert_eq!(other.complete(&beside).await?, v1::Written::Yes);
    let alone = stream.jobs().await?.remove(0);
    assert_eq!(alone.job_id, suspect);
    assert_eq!(db.state(next).await?, Some(State::Waiting), "the suspect runs alone");
    assert_eq!(stream.complete(&alone).await?, v1::Written::Yes);
    assert_eq!(other.jobs().await?[0].job_id, next, "the other stream goes on");
    node.stop().await
}

#[tokio::test]
async fn jobs_claimed_ahead_of_a_slow_one_are_given_to_a_stream_that_is_free() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let slow = Arc::new(Notify::new());
    let end = slow.clone();
    let handler = move |job: Work, _: Context| {
        let end = end.clone();
        async move {
            if job.n == 100 {
                end.notified().await;
            }
            Ok::<_, String>(())
        }
    };
    let one_slot = || Worker::remote(&node.url()).queue("default", 1).handle(handler.clone());
    db.pitwheel().enqueue_many((0..200).map(work)).await?;
    let busy = start_worker(one_slot());
    let done = async || db.count("select count(*) from pitwheel.job_history").await;
    wait_until("the slow one has started", async || Ok(done().await? >= 100)).await?;
    let free = start_worker(one_slot());
    wait_until("the others are done", async || Ok(done().await? == 199)).await?;
    slow.notify_one();
    assert_eq!(busy.stop().await?.lost + free.stop().await?.lost, 0);
    node.stop().await
}
