//! Whatever is sent, the server refuses it with a clear status and serves the next caller.

mod support;

use std::time::Duration;

use anyhow::Result;
use pitwheel::{Role, State};
use pitwheel_proto::v1;
use pitwheel_testkit::{Http, TestDb, wait_until};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;
use tonic::Code;

use crate::support::{Node, claim_of, stream_request};

const LEASE: Duration = Duration::from_secs(30);
/// Calls of one token that run at a time.
const TOKEN_CALLS: i64 = 6;

#[tokio::test]
async fn a_stream_request_with_invalid_fields_is_refused() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let good = stream_request(1);
    let bad = [
        v1::StreamJobsRequest { worker: "\n".into(), ..good.clone() },
        v1::StreamJobsRequest { queues: vec![], ..good.clone() },
        v1::StreamJobsRequest { queues: vec!["white space".into()], ..good.clone() },
        v1::StreamJobsRequest { queues: (0..101).map(|n| format!("q{n}")).collect(), ..good.clone() },
        v1::StreamJobsRequest { kinds: vec![], ..good.clone() },
        v1::StreamJobsRequest { kinds: vec!["\0".into()], ..good.clone() },
        v1::StreamJobsRequest { slots: 0, ..good.clone() },
        v1::StreamJobsRequest { slots: u32::MAX, ..good.clone() },
    ];
    let mut client = node.workers().await?;
    for request in bad {
        let shown = format!("{request:?}");
        let refusal = client.stream_jobs(request).await.expect_err(&shown);
        assert_eq!(refusal.code(), Code::InvalidArgument, "{shown}: {refusal}");
    }
    assert_eq!(db.count("select count(*) from pitwheel.worker").await?, 0);
    client.stream_jobs(good).await?;
    node.stop().await
}

#[tokio::test]
async fn an_invalid_job_is_refused_with_its_whole_batch() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let good = v1::NewJob { kind: "work".into(), ..v1::NewJob::default() };
    let far = prost_types::Timestamp { seconds: i64::MAX, nanos: 0 };
    let bad = [
        v1::NewJob { kind: String::new(), ..good.clone() },
        v1::NewJob { payload: "{".into(), ..good.clone() },
        v1::NewJob { payload: "\"\\u0000\"".into(), ..good.clone() },
        v1::NewJob { payload: "1e9999".into(), ..good.clone() },
        v1::NewJob { payload: format!("{}1{}", "[".repeat(100), "]".repeat(100)), ..good.clone() },
        v1::NewJob { payload: format!("\"{}\"", "x".repeat(300_000)), ..good.clone() },
        v1::NewJob { queue: "no name".into(), ..good.clone() },
        v1::NewJob { priority: 10, ..good.clone() },
        v1::NewJob { priority: i32::MIN, ..good.clone() },
        v1::NewJob { max_attempts: Some(0), ..good.clone() },
        v1::NewJob { max_attempts: Some(u32::MAX), ..good.clone() },
        v1::NewJob { run_at: Some(far), ..good.clone() },
        v1::NewJob { timeout: Some(prost_types::Duration { seconds: -1, nanos: 0 }), ..good.clone() },
        v1::NewJob { timeout: Some(prost_types::Duration { seconds: i64::MAX, nanos: 0 }), ..good.clone() },
        v1::NewJob { key: Some(String::new()), ..good.clone() },
        v1::NewJob { key: Some("\0".into()), ..good.clone() },
        v1::NewJob { metadata: Some("}".into()), ..good.clone() },
        v1::NewJob { lane: Some("[".into()), ..good.clone() },
        v1::NewJob { lane: Some("[1.5]".into()), ..good.clone() },
        v1::NewJob { lane: Some("\"\\u0000\"".into()), ..good.clone() },
        v1::NewJob { lane_pass: true, ..good.clone() },
    ];
    let mut client = node.jobs().await?;
    for job in bad {
        let shown: String = format!("{job:?}").chars().take(200).collect();
        let refusal =
            client.enqueue(v1::EnqueueRequest { jobs: vec![good.clone(), job] }).await.expect_err(&shown);
        assert_eq!(refusal.code(), Code::InvalidArgument, "{shown}: {refusal}");
    }
    for count in [0, 501] {
        let jobs = vec![good.clone(); count];
        let refusal = client.enqueue(v1::EnqueueRequest { jobs }).await.expect_err("too few or many");
        assert_eq!(refusal.code(), Code::InvalidArgument);
    }
    assert_eq!(db.count("select count(*) from pitwheel.job").await?, 0, "a refused batch leaves nothing");
    for id in [0, -1, i64::MIN, i64::MAX] {
        let refusal = client.get_job(v1::GetJobRequest { job_id: id }).await.expect_err("no such job");
        assert_eq!(refusal.code(), Code::NotFound);
        let refusal = client.cancel_job(v1::CancelJobRequest { job_id: id }).await.expect_err("no such job");
        assert_eq!(refusal.code(), Code::NotFound);
    }
    let enqueued = client.enqueue(v1::EnqueueRequest { jobs: vec![good; 500] }).await?.into_inner();
    assert_eq!(enqueued.jobs.len(), 500);
    node.stop().await
}

#[tokio::test]
async fn invalid_results_are_refused_and_the_job_still_runs() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    db.pitwheel().enqueue(pitwheel::NewJob::raw("work", "{}")).await?;
    let mut stream = node.stream(1).await?;
    let job = stream.jobs().await?.remove(0);
    let claim = Some(claim_of(&job));
    let outcome = |outcome| v1::Result { claim, outcome: Some(outcome), ..v1::Result::default() };
    use v1::result::Outcome as Reply;
    let payload = format!("\"{}\"", "x".repeat(250_000));
    let large = v1::NewJob { kind: "work".into(), payload, ..v1::NewJob::default() };
    let bad = [
        v1::Result::default(),
        v1::Result { claim, ..v1::Result::default() },
        v1::Result { outcome: Some(Reply::Release(v1::Release {})), ..v1::Result::default() },
        outcome(Reply::Snooze(v1::Snooze { delay: None })),
        outcome(Reply::Snooze(v1::Snooze { delay: Some(prost_types::Duration { seconds: -5, nanos: 0 }) })),
        outcome(Reply::Complete(v1::Complete { result: Some("not json".into()), ..v1::Complete::default() })),
        outcome(Reply::Fail(v1::Fail {
            retry_after: Some(prost_types::Duration { seconds: i64::MAX, nanos: 0 }),
            ..v1::Fail::default()
        })),
        outcome(Reply::Complete(v1::Complete { then: vec![large; 13], ..v1::Complete::default() })),
    ];
    for result in bad {
        let shown = format!("{result:?}").chars().take(200).collect::<String>();
        let request = v1::ReportResultRequest { results: vec![result] };
        let refusal = stream.client.report_result(request).await.expect_err(&shown);
        assert_eq!(refusal.code(), Code::InvalidArgument, "{shown}: {refusal}");
    }
    // A result for a job that is not held is lost. An invalid note and an overlong error are shortened and accepted.
    let unknown = v1::Assignment { job_id: i64::MAX, fence: -1, ..job.clone() };
    assert_eq!(stream.complete(&unknown).await?, v1::Written::Lost);
    let invalid = v1::Progress { fraction: f32::NAN, note: "\0".repeat(10_000) };
    assert_eq!(stream.report(&job, Reply::Progress(invalid)).await?, v1::Written::Yes);
    let error = v1::Fail { error: "\0é".repeat(100_000), cause: 77, ..v1::Fail::default() };
    assert_eq!(stream.report(&job, Reply::Fail(error)).await?, v1::Written::Yes);
    node.stop().await
}

#[tokio::test]
async fn bytes_of_no_protocol_do_not_disturb_the_server() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    // Written by hand: no client library sends these bytes.
    for noise in [b"GET / HTTP/1.1\r\n\r\n".as_slice(), &[0; 1000], &[0xff; 100_000]] {
        let mut socket = tokio::net::TcpStream::connect(node.address).await?;
        // The node may close the connection before it has read all of it.
        let _ = socket.write_all(noise).await;
    }
    let job = v1::NewJob { kind: "work".into(), ..v1::NewJob::default() };
    node.jobs().await?.enqueue(v1::EnqueueRequest { jobs: vec![job] }).await?;
    node.stop().await
}

#[tokio::test]
async fn callers_that_give_up_again_and_again_do_not_take_every_connection() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let http = Http::new(node.address);
    let secret = db.pitwheel().create_token("other", Role::Viewer, None).await?.1;
    let id = db.job().insert().await?;
    let mut other = db.client().await?;
    let lock = other.transaction().await?;
    lock.execute("select from pitwheel.job where id = $1 for update", &[&id]).await?;
    let body = json!({ "ids": [id] });
    let cancel = |http: &Http| {
        let (http, body) = (http.clone(), body.clone());
        async move { http.post("/api/v1/jobs/cancel", &body).await }
    };
    let waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
    for given_up in 1..=TOKEN_CALLS {
        let call = AbortOnDropHandle::new(tokio::spawn(cancel(&http)));
        wait_until("its statement waits", async || Ok(db.count(waiting).await? == given_up)).await?;
        drop(call);
    }
    assert_eq!(cancel(&http).await?.status, 429, "Postgres works on all that the others have asked for");
    let kinds = timeout(Duration::from_secs(5), http.token(&secret).get("/api/v1/kinds")).await??;
    assert_eq!(kinds.status, 200, "another caller");
    lock.rollback().await?;
    assert_eq!(cancel(&http).await?.status, 200);
    assert_eq!(db.state(id).await?, Some(State::Cancelled));
    node.stop().await
}
