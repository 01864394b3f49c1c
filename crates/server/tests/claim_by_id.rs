//! Claims of one job by its id, by a remote worker and for one: of several callers one gets the job, and the others learn why not.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use pitwheel::{ClaimRefusal, Context, Error, Lane, NewJob, Stats, Worker};
use pitwheel_proto::v1;
use pitwheel_proto::v1::stream_jobs_response::Event;
use pitwheel_testkit::{Http, TestDb, WAIT_MAX, Work, wait_until, work};
use serde_json::json;
use tonic::Code;

use crate::support::{Node, WorkerStream, stream_request};

const LEASE: Duration = Duration::from_secs(30);
const ALIVE: &str = "select count(*) from pitwheel.worker where dead_at is null";
const HELD: &str = "select count(*) from pitwheel.job where holder is not null";

fn for_job(id: i64) -> v1::StreamJobsRequest {
    v1::StreamJobsRequest { job_id: Some(id), queues: Vec::new(), slots: 0, ..stream_request(1) }
}

/// Why the server refuses to claim the job: the only message of the stream.
async fn refusal(node: &Node, id: i64) -> Result<v1::ClaimRefusal> {
    let mut messages = node.workers().await?.stream_jobs(for_job(id)).await?.into_inner();
    let first = tokio::time::timeout(WAIT_MAX, messages.message()).await??;
    let Some(Event::ClaimRefused(refused)) = first.and_then(|message| message.event) else {
        bail!("job {id} was claimed")
    };
    assert!(messages.message().await?.is_none(), "the stream has one message");
    Ok(refused.reason())
}

#[tokio::test]
async fn a_stream_for_one_job_gets_that_job_and_no_other() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let due = db.pitwheel().enqueue(work(1)).await?.id;
    let later = db.pitwheel().enqueue(work(2).delay(Duration::from_secs(3600))).await?.id;
    let mut stream = WorkerStream::open_with(node.workers().await?, for_job(later)).await?;
    let jobs = stream.jobs().await?;
    assert_eq!((jobs.len(), jobs[0].job_id, jobs[0].worker_id), (1, later, stream.worker_id));
    assert_eq!(refusal(&node, later).await?, v1::ClaimRefusal::Taken);
    assert_eq!(stream.complete(&jobs[0]).await?, v1::Written::Yes);
    assert_eq!(refusal(&node, later).await?, v1::ClaimRefusal::Finished);
    let quiet = tokio::time::timeout(Duration::from_millis(500), stream.messages.message()).await;
    assert!(quiet.is_err(), "the other job is not sent: {quiet:?}");
    assert_eq!(db.state(due).await?, Some(pitwheel::State::Waiting));
    assert_eq!(db.count(ALIVE).await?, 1, "a worker that was refused has signed off");
    drop(stream);
    node.stop().await
}

#[tokio::test]
async fn a_job_that_cannot_be_claimed_is_refused_with_the_reason() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let lane = Lane::of(json!(["module", null]))?;
    let jobs = db.pitwheel().enqueue_many([work(1).lane(lane.clone()), work(2).lane(lane.clone())]).await?;
    let spent = db.job().kind("work").attempts(3, 3).insert().await?;
    let other = db.job().kind("other").insert().await?;
    let paused = db.job().kind("work").queue("paused").insert().await?;
    db.pitwheel().pause(Some("paused")).await?;
    let rows = "select sum(hashtext(job::text))::bigint from pitwheel.job";
    let before = db.count(rows).await?;
    for (id, why) in [
        (jobs[1].id, v1::ClaimRefusal::LaneBusy),
        (spent, v1::ClaimRefusal::OutOfAttempts),
        (other, v1::ClaimRefusal::NoHandler),
        (paused, v1::ClaimRefusal::Paused),
    ] {
        assert_eq!(refusal(&node, id).await?, why);
    }
    assert_eq!(db.count(rows).await?, before, "nothing was changed");
    let missing = node.workers().await?.stream_jobs(for_job(4711)).await;
    assert_eq!(missing.err().map(|status| status.code()), Some(Code::NotFound));
    assert_eq!(db.count(ALIVE).await?, 0);
    assert!(
        db.pitwheel().lane_current(&lane).await?.is_none(),
        "a claim that takes nothing makes nothing current"
    );
    node.stop().await
}

#[tokio::test]
async fn a_stream_that_breaks_before_its_job_arrived_gives_it_back() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let id = db.pitwheel().enqueue(work(1)).await?.id;
    // The response has come, and nothing of the stream is read.
    let messages = node.workers().await?.stream_jobs(for_job(id)).await?;
    drop(messages);
    // The job was not sent, or its worker sends no heartbeat that names it.
    let mut client = node.workers().await?;
    let worker_id = db.count("select max(id) from pitwheel.worker").await?;
    let ended = vec![v1::EndedStream { worker_id, holding: Vec::new() }];
    client.heartbeat(v1::HeartbeatRequest { worker_ids: Vec::new(), ended }).await?;
    wait_until("the job is free", async || Ok(db.count(HELD).await? == 0)).await?;
    node.stop().await
}

fn runs_one(node: &Node, ran: &Arc<AtomicUsize>) -> Worker {
    let ran = ran.clone();
    Worker::remote(&node.url()).handle(move |_: Work, _: Context| {
        ran.fetch_add(1, Ordering::SeqCst);
        async { Ok::<(), String>(()) }
    })
}

#[tokio::test]
async fn a_remote_worker_runs_one_job_by_its_id_unless_it_is_refused() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let ran = Arc::new(AtomicUsize::new(0));
    let jobs = db.pitwheel().enqueue_many([work(1).delay(Duration::from_secs(3600)), work(2)]).await?;
    let stats = runs_one(&node, &ran).run_job(jobs[0].id, std::future::pending()).await?;
    assert_eq!(stats, Ok(Stats { started: 1, settled: 1, ..Stats::default() }));
    assert_eq!((db.state(jobs[0].id).await?, ran.load(Ordering::SeqCst)), (Some(pitwheel::State::Done), 1));
    let again = runs_one(&node, &ran).run_job(jobs[0].id, std::future::pending()).await?;
    assert_eq!(again, Err(ClaimRefusal::Finished));
    let missing = runs_one(&node, &ran).run_job(4711, std::future::pending()).await;
    assert!(matches!(missing, Err(Error::NotFound(4711, _))), "{missing:?}");
    assert_eq!(ran.load(Ordering::SeqCst), 1, "no other job, and no handler for a refused one");
    assert_eq!(db.count(ALIVE).await?, 0, "every worker has signed off");
    node.stop().await
}

#[tokio::test]
async fn of_remote_workers_at_two_nodes_one_gets_the_job() -> Result<()> {
    let db = TestDb::new().await?;
    let nodes = [Node::start(db.pitwheel(), LEASE).await?, Node::start(db.pitwheel(), LEASE).await?];
    let ran = Arc::new(AtomicUsize::new(0));
    for round in 0..5 {
        let id = db.pitwheel().enqueue(work(round).lane(Lane::of(json!(["a", null]))?)).await?.id;
        let claims = (0..6).map(|at| runs_one(&nodes[at % 2], &ran).run_job(id, std::future::pending()));
        let claimed = futures_util::future::join_all(claims).await;
        let claimed = claimed.into_iter().collect::<Result<Vec<_>, _>>()?;
        let refused = claimed.iter().filter_map(|one| one.as_ref().err());
        assert_eq!(claimed.iter().filter(|one| one.is_ok()).count(), 1, "{claimed:?}");
        for refusal in refused {
            assert!(matches!(refusal, ClaimRefusal::Taken | ClaimRefusal::Finished), "{refusal:?}");
        }
    }
    assert_eq!(ran.load(Ordering::SeqCst), 5);
    for node in nodes {
        node.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn an_operator_claims_a_job_for_a_worker() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let http = Http::new(node.address);
    let claim = async |id: i64, worker: i64| {
        http.post(&format!("/api/v1/jobs/{id}/claim"), &json!({ "worker_id": worker })).await
    };
    let mut stream = node.stream(1).await?;
    let later = |n: i64| work(n).queue("elsewhere").delay(Duration::from_secs(3600));
    let jobs = db.pitwheel().enqueue_many([later(1), later(2)]).await?;
    let (first, second) = (jobs[0].id, jobs[1].id);
    let claimed = claim(first, stream.worker_id).await?;
    assert_eq!((claimed.status, &claimed.json()?["state"]), (200, &json!("running")), "{}", claimed.text);
    let sent = stream.jobs().await?;
    assert_eq!((sent[0].job_id, sent[0].worker_id), (first, stream.worker_id));

    let refused = async |id: i64, worker: i64, why: &str| -> Result<()> {
        let response = claim(id, worker).await?;
        let problem = response.json()?;
        assert_eq!((response.status, &problem["title"]), (409, &json!("not_claimed")), "{}", response.text);
        assert!(problem["detail"].as_str().context("no detail")?.contains(why), "{}", response.text);
        Ok(())
    };
    refused(second, stream.worker_id, "no free slot").await?;
    assert_eq!(stream.complete(&sent[0]).await?, v1::Written::Yes);
    refused(first, stream.worker_id, "it is finished").await?;
    refused(second, 4711, "no stream on this node").await?;
    assert_eq!(claim(4711, stream.worker_id).await?.status, 404);
    assert_eq!(http.post("/api/v1/jobs/1/claim", &json!({})).await?.status, 400);
    assert_eq!(claim(second, stream.worker_id).await?.status, 200, "its slot is free again");
    let sent = stream.jobs().await?;
    assert_eq!(stream.complete(&sent[0]).await?, v1::Written::Yes);
    let audit = db.pitwheel().audit(None, 2).await?;
    let actions: Vec<_> = audit.iter().map(|entry| (&*entry.actor, &*entry.action)).collect();
    assert_eq!(actions, [("loopback", "job.claim"); 2]);
    drop(stream);
    node.stop().await
}

/// Claims through HTTP beside the claims of the node's own claimer.
#[tokio::test]
async fn claims_by_id_beside_others_never_take_a_job_twice() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let http = Http::new(node.address);
    let jobs = db.pitwheel().enqueue_many((0..50).map(|n| NewJob::of(&Work { n }))).await?;
    let mut stream = node.stream(20).await?;
    let claims = jobs.iter().rev().map(|job| {
        let (http, body) = (http.clone(), json!({ "worker_id": stream.worker_id }));
        async move { http.post(&format!("/api/v1/jobs/{}/claim", job.id), &body).await }
    });
    let claims = futures_util::future::join_all(claims);
    let run = async {
        let mut ran = Vec::new();
        while ran.len() < jobs.len() {
            for job in stream.jobs().await? {
                assert_eq!(
                    stream.complete(&job).await?,
                    v1::Written::Yes,
                    "it was claimed twice, or released"
                );
                ran.push(job.job_id);
            }
        }
        anyhow::Ok(ran)
    };
    let (answers, ran) = tokio::join!(claims, run);
    let mut ran = ran?;
    ran.sort_unstable();
    assert_eq!(ran, jobs.iter().map(|job| job.id).collect::<Vec<_>>());
    for answer in answers {
        let status = answer?.status;
        assert!(status == 200 || status == 409, "{status}");
    }
    drop(stream);
    node.stop().await
}
