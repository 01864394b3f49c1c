//! Callers who may only read see nothing that a job of a redacted kind is about.

mod support;

use anyhow::{Context as _, Result};
use pitwheel::{NewJob, NewRecurring, Role};
use pitwheel_proto::v1;
use pitwheel_proto::v1::recurring_name::Name;
use pitwheel_proto::v1::recurring_service_client::RecurringServiceClient;
use pitwheel_proto::v1::result::Outcome;
use pitwheel_server::Options;
use pitwheel_testkit::{Http, TestDb};
use serde_json::{Value, json};
use tonic::{Code, Request};

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
        assert_eq!(by_key["jobs"] != json!([]), sees, "a key cannot be guessed: {by_key}");
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

#[tokio::test]
async fn a_list_by_key_or_lane_does_not_tell_whether_a_hidden_job_has_it() -> Result<()> {
    let db = TestDb::new().await?;
    failed_job(&db).await?;
    db.pitwheel().redact("work", true).await?;
    let node = start_with_tokens(&db).await?;
    for (role, sees) in [(Role::Viewer, false), (Role::Operator, true)] {
        let secret = db.pitwheel().create_token(role.as_str(), role, None).await?.1;
        let http = Http::new(node.address).token(&secret);
        for path in [
            "/api/v1/jobs?limit=1&key=card%20",
            "/api/v1/jobs?kind=work&limit=1&key=card%20",
            "/api/v1/jobs?state=waiting&limit=1&key=card%20",
            "/api/v1/lanes/jobs?limit=1&lane=%22card%20",
            "/api/v1/lanes/current?lane=%22card%20",
        ] {
            let end = if path.contains("lane") { "%22" } else { "" };
            let hidden = http.get(&format!("{path}4111{end}")).await?;
            let none = http.get(&format!("{path}4112{end}")).await?;
            assert_eq!((hidden.status, none.status), (200, 200), "{}", hidden.text);
            assert_eq!(hidden.text != none.text, sees, "{} {path}: {}", role.as_str(), hidden.text);
        }
    }
    node.stop().await
}

#[tokio::test]
async fn jobs_of_other_kinds_are_listed_page_by_page_among_hidden_ones() -> Result<()> {
    let db = TestDb::new().await?;
    let mut ids = Vec::new();
    for kind in ["open", "work", "work", "too", "work"] {
        let job = NewJob::raw(kind, "{}").lane("card 4111");
        // One live job of a kind has a key, so the others are finished.
        let id = db.pitwheel().enqueue(job.key("card 4111")).await?.id;
        db.pitwheel().cancel(id).await?;
        ids.push(id);
    }
    db.pitwheel().redact("work", true).await?;
    let node = start_with_tokens(&db).await?;
    let secret = db.pitwheel().create_token("viewer", Role::Viewer, None).await?.1;
    let http = Http::new(node.address).token(&secret);
    for path in ["jobs?key=card%204111", "history?key=card%204111", "lanes/jobs?lane=%22card%204111%22"] {
        let page = async |before: i64, limit: usize| -> Result<(Vec<Value>, Value)> {
            let page = http.get(&format!("/api/v1/{path}&before={before}&limit={limit}")).await?.json()?;
            let jobs = page["jobs"].as_array().context("no list")?;
            Ok((jobs.iter().map(|job| job["id"].clone()).collect(), page["next"].clone()))
        };
        let (first, second) = (json!(ids[3]), json!(ids[0]));
        assert_eq!(page(i64::MAX, 1).await?, (vec![first.clone()], first.clone()), "{path}");
        assert_eq!(page(ids[3], 1).await?, (vec![second.clone()], second.clone()), "{path}");
        assert_eq!(page(ids[0], 1).await?, (vec![], Value::Null), "{path}");
        assert_eq!(page(i64::MAX, 3).await?, (vec![first, second], Value::Null), "{path}");
        let refused = http.get(&format!("/api/v1/{path}&limit=1001")).await?;
        assert_eq!(refused.status, 400, "{}", refused.text);
    }
    node.stop().await
}

#[tokio::test]
async fn a_recurring_job_of_a_redacted_kind_is_not_found_by_its_key() -> Result<()> {
    let db = TestDb::new().await?;
    let new = NewRecurring::raw("work", "{}", "card 4111", "every 1h".parse()?);
    let id = db.pitwheel().recurring().create(new).await?.id;
    db.pitwheel().redact("work", true).await?;
    let node = start_with_tokens(&db).await?;
    let mut client = RecurringServiceClient::connect(node.url()).await?;
    let by_key = |key: &str| {
        let key = v1::RecurringKey { kind: "work".into(), key: key.into() };
        Some(v1::RecurringName { name: Some(Name::Key(key)) })
    };
    let by_id = Some(v1::RecurringName { name: Some(Name::RecurringId(id)) });
    for (role, sees) in [(Role::Viewer, false), (Role::Producer, false), (Role::Operator, true)] {
        let secret = db.pitwheel().create_token(role.as_str(), role, None).await?.1;
        let mut codes = Vec::new();
        for name in [by_id.clone(), by_key("card 4111"), by_key("card 4112")] {
            let get = with_token(v1::GetRecurringRequest { name: name.clone() }, &secret)?;
            let times = with_token(v1::ListRunTimesRequest { name, count: 1 }, &secret)?;
            let got = client.get_recurring(get).await.map(drop);
            let listed = client.list_run_times(times).await.map(drop);
            codes.push(
                [got, listed]
                    .map(|answer| answer.err().map(|status| (status.code(), status.message().to_owned()))),
            );
        }
        assert_eq!(codes[0], [None, None], "{}", role.as_str());
        assert_eq!(codes[1] == [None, None], sees, "{}: {codes:?}", role.as_str());
        assert_eq!(codes[1] == codes[2], !sees, "{}: {codes:?}", role.as_str());
        assert_eq!(codes[2][0].as_ref().map(|(code, _)| *code), Some(Code::NotFound));
    }
    node.stop().await
}
