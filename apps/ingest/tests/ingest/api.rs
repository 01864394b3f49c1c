//! The HTTP API.

use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use pitwheel::Role;
use pitwheel_ingest::{WorkerOptions, http};
use pitwheel_server::{Readiness, Server};
use pitwheel_testkit::{Http, wait_until};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use crate::support::{TestIngest, entries};

const LANE: &str = "module=travel&entry_type=flights&year=2025";

async fn serve(test: &TestIngest) -> Result<(SocketAddr, oneshot::Sender<()>)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let (stop, stopped) = oneshot::channel::<()>();
    let readiness = Readiness::default();
    let mut needs_tokens = pitwheel_server::Options::default();
    needs_tokens.require_tokens = true;
    let server = Server::new(test.db.pitwheel())
        .options(needs_tokens)
        .routes(http::routes(&test.ingest))
        .streamed(http::STREAMED_PREFIX)
        .readiness(&readiness);
    tokio::spawn(server.run(listener, async { drop(stopped.await) }));
    readiness.accepting().await?;
    Ok((address, stop))
}

async fn client(test: &TestIngest, address: SocketAddr, role: Role) -> Result<(Http, String)> {
    let secret = test.db.pitwheel().create_token(role.as_str(), role, None).await?.1;
    Ok((Http::new(address).token(&secret), secret))
}

#[tokio::test]
async fn the_api_does_what_the_library_does() -> Result<()> {
    let test = TestIngest::new().await?;
    let (address, _stop) = serve(&test).await?;
    let (http, _) = client(&test, address, Role::Operator).await?;
    let (viewer, _) = client(&test, address, Role::Viewer).await?;
    let worker = test.start(WorkerOptions::default());
    let uploads = format!("/api/v1/ingest/uploads?{LANE}&skip_bad_rows=true&file_name=flights.csv");
    assert_eq!(Http::new(address).send("POST", &uploads, entries(&["1"])).await?.status, 401);
    assert_eq!(viewer.send("POST", &uploads, entries(&["1"])).await?.status, 403);

    let sent = http.send("POST", &uploads, entries(&["1", "many", "2"])).await?;
    assert_eq!(sent.status, 202, "{}", sent.text);
    let job = sent.json()?;
    assert_eq!((&job["kind"], &job["file_name"]), (&json!("csv_ingest"), &json!("flights.csv")));
    let mut events = viewer.events(job["events"].as_str().unwrap_or_default()).await?;
    let last = loop {
        match events.next().await? {
            (name, _) if name == "end" => bail_without_state(),
            (_, event) if event["state"] == "done" => break event,
            _ => {}
        }
    };
    assert_eq!(last["id"], job["id"]);
    let id = job["id"].as_i64().context("no id")?;
    test.ended(id).await?;
    let path = format!("/api/v1/ingest/jobs/{id}");
    assert_eq!(viewer.get(&path).await?.json()?["state"], "done");
    assert_eq!(
        viewer.get(&format!("{path}/rejected")).await?.status,
        403,
        "rows may hold what a viewer must not see"
    );
    let rejected = http.get(&format!("{path}/rejected")).await?;
    assert!(rejected.content_type.starts_with("text/csv"));
    assert_eq!(rejected.text.lines().next(), Some("line,column,reason,row"));
    assert!(
        rejected.text.contains("3,quantity,") && rejected.text.contains("\"it,flight,many,km\""),
        "{}",
        rejected.text
    );

    let lanes = viewer.get("/api/v1/ingest/lanes?module=travel&method=csv").await?.json()?;
    let lane = &lanes["lanes"][0];
    assert_eq!((&lane["rows"], &lane["rejected"]), (&json!(2), &json!(1)));
    let version = lane["current_version"].as_i64().context("nothing is current")?;
    let rows = viewer.get(&format!("/api/v1/ingest/versions/{version}/rows?limit=1")).await?.json()?;
    assert_eq!((&rows["rows"][0]["quantity"], &rows["next"]), (&json!(1), &json!(2)));

    let second =
        http.send("POST", &uploads, entries(&["7"])).await?.json()?["id"].as_i64().context("no id")?;
    test.ended(second).await?;
    assert_eq!(viewer.get(&format!("/api/v1/ingest/versions/{version}")).await?.json()?["is_current"], false);
    let promote = format!("/api/v1/ingest/versions/{version}/promote");
    assert_eq!(viewer.post(&promote, &Value::Null).await?.status, 403);
    assert_eq!(http.post(&promote, &Value::Null).await?.json()?["is_current"], true);
    let versions = viewer.get(&format!("/api/v1/ingest/lanes/{}/versions", lane["id"])).await?.json()?;
    assert_eq!(versions.as_array().map(Vec::len), Some(2));
    let history = viewer.get("/api/v1/ingest/jobs?module=travel&method=csv&limit=1").await?.json()?;
    assert_eq!((&history["jobs"][0]["id"], &history["next"]), (&json!(second), &json!(second)));

    let computed = json!({ "module": "travel", "target": "entries", "method": "computed" });
    assert_eq!(http.post("/api/v1/ingest/syncs", &computed).await?.status, 202);
    let api = json!({ "target": "units", "method": "api" });
    assert_eq!(http.post("/api/v1/ingest/syncs", &api).await?.status, 400, "it has no source");
    assert_eq!(viewer.get("/api/v1/ingest/versions/999").await?.status, 404);
    assert_eq!(viewer.get("/api/v1/ingest/jobs/999999").await?.status, 404);
    let document = viewer.get("/api/openapi.json").await?.json()?;
    assert!(document["paths"]["/api/v1/ingest/uploads"]["post"].is_object());
    let metrics = viewer.get("/metrics").await?.text;
    assert!(metrics.contains("ingest_rows_total{result=\"rejected\"}"), "{metrics}");
    worker.stop().await
}

fn bail_without_state() -> ! {
    panic!("the stream ended before the job was done")
}

#[tokio::test]
async fn bad_requests_are_refused_with_what_to_do() -> Result<()> {
    let test = TestIngest::new().await?;
    let (address, _stop) = serve(&test).await?;
    let (http, _) = client(&test, address, Role::Operator).await?;
    for (query, body, expected) in [
        (LANE, String::new(), "the file is empty"),
        (LANE, entries(&["1"]).replace("quantity", "quantty"), "did you mean `quantity`"),
        ("module=a%20b", entries(&["1"]), "use 1 to 63 letters"),
        ("module=travel&columns=x", entries(&["1"]), "not a JSON object"),
        ("module=travel&target=else", entries(&["1"]), "target"),
    ] {
        let refused = http.send("POST", &format!("/api/v1/ingest/uploads?{query}"), body).await?;
        assert!(
            refused.status == 400 && refused.text.contains(expected),
            "{} {}",
            refused.status,
            refused.text
        );
    }
    assert_eq!(test.db.count("select count(*) from ingest.sync").await?, 0);
    assert_eq!(test.files()?, 0);
    Ok(())
}

#[tokio::test]
async fn an_upload_is_streamed_and_one_that_is_cut_off_changes_nothing() -> Result<()> {
    let test = TestIngest::new().await?;
    let (address, _stop) = serve(&test).await?;
    let (http, secret) = client(&test, address, Role::Operator).await?;
    let path = format!("/api/v1/ingest/uploads?{LANE}");
    // More than other requests may have.
    let large = entries(&["1"]) + &"it,flight,1,km\n".repeat(600_000);
    let sent = http.send("POST", &path, large).await?;
    assert_eq!(sent.status, 202, "{}", sent.text);
    assert_eq!((test.db.count("select count(*) from ingest.sync").await?, test.files()?), (1, 1));

    let mut stream = TcpStream::connect(address).await?;
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {secret}\r\ncontent-length: 100000\r\n\r\n{}",
        entries(&["1"])
    );
    stream.write_all(head.as_bytes()).await?;
    wait_until("the upload has begun", || async { Ok(test.files()? == 2) }).await?;
    stream.shutdown().await?;
    let mut answer = String::new();
    // The server may answer or just close.
    let _ = stream.read_to_string(&mut answer).await;
    wait_until("the part of a file is deleted", || async { Ok(test.files()? == 1) }).await?;
    assert_eq!(test.db.count("select count(*) from ingest.sync").await?, 1, "no job: {answer}");
    Ok(())
}
