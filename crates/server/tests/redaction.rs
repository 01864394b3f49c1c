//! Callers who may only read see nothing that a job of a redacted kind is about.

mod support;

use anyhow::{Context as _, Result};
use pitwheel::{NewJob, Role};
use pitwheel_proto::v1;
use pitwheel_proto::v1::result::Outcome;
use pitwheel_server::Options;
use pitwheel_testkit::{Http, TestDb};
use tonic::Request;

use crate::support::{Node, WorkerStream, stream_request};

async fn start_with_tokens(db: &TestDb) -> Result<Node> {
    let mut options = Options::default();
    options.require_tokens = true;
    Node::start_with(db.pitwheel(), options, "127.0.0.1:0".parse()?).await
}

fn with_token<T>(message: T, secret: &str) -> Result<Request<T>> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", format!("Bearer {secret}").parse()?);
    Ok(request)
}

/// A job whose key, lane, note, payload, metadata and error message contain `4111`. Its attempt has failed.
async fn failed_job(db: &TestDb) -> Result<i64> {
    let open = Node::start(db.pitwheel(), std::time::Duration::from_secs(30)).await?;
    let job = NewJob::raw("work", r#"{"card":"4111"}"#)
        .key("card 4111")
        .metadata_raw(r#"{"card":"4111"}"#)
        .lane("card 4111");
    let id = db.pitwheel().enqueue(job).await?.id;
    let mut stream: WorkerStream = open.stream(stream_request(1).slots).await?;
    let job = stream.jobs().await?.remove(0);
    let note = v1::Progress { fraction: 0.5, note: "card 4111 charged".into() };
    assert_eq!(stream.report(&job, Outcome::Progress(note)).await?, v1::Written::Yes);
    let error = v1::Fail { error: "card 4111 refused".into(), ..v1::Fail::default() };
    assert_eq!(stream.report(&job, Outcome::Fail(error)).await?, v1::Written::Yes);
    drop(stream);
    open.stop().await?;
    Ok(id)
}

#[tokio::test]
async fn key_note_and_errors_of_a_redacted_kind_are_hidden() -> Result<()> {
    let db = TestDb::new().await?;
    let id = failed_job(&db).await?;
    db.pitwheel().redact("work", true).await?;
    let node = start_with_tokens(&db).await?;
    for (role, sees) in [(Role::Viewer, false), (Role::Operator, true)] {
        let secret = db.pitwheel().create_token(role.as_str(), role, None).await?.1;
        let http = Http::new(node.address).token(&secret);
        for path in [format!("/api/v1/jobs/{id}"), "/api/v1/jobs".into(), "/api/v1/jobs?kind=work".into()] {
            let shown = http.get(&path).await?;
            assert!(shown.text.contains(&format!("\"id\":{id}")), "{}", shown.text);
            assert_eq!(shown.text.contains("4111"), sees, "{} {path}: {}", role.as_str(), shown.text);
        }
        let by_key = http.get("/api/v1/jobs?key=card%204111").await?.json()?;
        assert_eq!(by_key["jobs"] != serde_json::json!([]), sees, "a key cannot be guessed: {by_key}");
        let shown = http.get(&format!("/api/v1/jobs/{id}")).await?.json()?;
        assert_eq!(shown["redacted"], !sees);
        assert_eq!(shown["errors"][0]["attempt"], 1, "an attempt is shown without its message");
        let (_, event) = http.events(&format!("/api/v1/events?jobs={id}")).await?.next().await?;
        assert_eq!(event.to_string().contains("4111"), sees, "{} {event}", role.as_str());
        let get = with_token(v1::GetJobRequest { job_id: id }, &secret)?;
        let job = node.jobs().await?.get_job(get).await?.into_inner().job.context("no job")?;
        assert_eq!(format!("{job:?}").contains("4111"), sees, "{} {job:?}", role.as_str());
    }
    node.stop().await
}
