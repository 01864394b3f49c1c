//! The HTTP API and the command line.

use std::net::SocketAddr;
use std::process::Command;

use anyhow::Result;
use pitwheel::Role;
use pitwheel_feeds::fetch::{Client, Options};
use pitwheel_feeds::http;
use pitwheel_server::{Readiness, Server};
use pitwheel_testkit::{Http, ScratchFolder};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::site::{Reply, Site, feed};
use crate::support::TestFeeds;

async fn serve(test: &TestFeeds) -> Result<(SocketAddr, oneshot::Sender<()>)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let (stop, stopped) = oneshot::channel::<()>();
    let readiness = Readiness::default();
    let mut options = Options::default();
    options.allow_private = true;
    let mut needs_tokens = pitwheel_server::Options::default();
    needs_tokens.require_tokens = true;
    let server = Server::new(test.db.pitwheel())
        .options(needs_tokens)
        .routes(http::routes(&test.feeds, Client::new(options)?))
        .readiness(&readiness);
    tokio::spawn(server.run(listener, async { drop(stopped.await) }));
    readiness.accepting().await?;
    Ok((address, stop))
}

#[tokio::test]
async fn the_api_does_what_the_library_does() -> Result<()> {
    let test = TestFeeds::new().await?;
    let site = Site::start(|_| Reply::ok(feed(&["1", "2"]))).await?;
    let (address, _stop) = serve(&test).await?;
    let secret = test.db.pitwheel().create_token("op", Role::Operator, None).await?.1;
    let viewer = test.db.pitwheel().create_token("viewer", Role::Viewer, None).await?.1;
    let (http, viewer) = (Http::new(address).token(&secret), Http::new(address).token(&viewer));
    assert_eq!(Http::new(address).get("/api/v1/feeds/sources").await?.status, 401);

    let new = json!({ "url": site.url("/"), "name": "A site", "priority": 3, "fetch_interval_minutes": 30 });
    assert_eq!(viewer.post("/api/v1/feeds/sources", &new).await?.status, 403);
    let added = http.post("/api/v1/feeds/sources", &new).await?;
    assert_eq!(added.status, 201, "{}", added.text);
    let source = added.json()?;
    assert_eq!((&source["enabled"], &source["priority"]), (&json!(true), &json!(3)));
    assert_eq!(http.post("/api/v1/feeds/sources", &new).await?.status, 200, "it is there");
    let path = format!("/api/v1/feeds/sources/{}", source["id"]);

    for (path, body) in [("sources", "{"), ("sources", "{\"url\":1}"), ("subscriptions", "[]")] {
        let json = http.header("content-type", "application/json");
        let refused = json.send("POST", &format!("/api/v1/feeds/{path}"), body).await?;
        assert_eq!((refused.status, &refused.json()?["title"]), (400, &json!("invalid")), "{}", refused.text);
    }
    let refused = viewer.get("/api/v1/feeds/sources?limit=many").await?;
    assert_eq!((refused.status, &refused.json()?["title"]), (400, &json!("invalid")), "{}", refused.text);

    let body = json!({ "url": site.url("/"), "subscriber": "ada" });
    assert_eq!(http.post("/api/v1/feeds/subscriptions", &body).await?.status, 201);
    assert_eq!(http.post("/api/v1/feeds/subscriptions", &body).await?.status, 200);
    test.fetch_due(1).await?;
    let articles = viewer.get("/api/v1/feeds/articles?subscriber=ada&limit=1").await?.json()?;
    assert_eq!(articles["articles"][0]["title"], "article 1", "the first of the document is the newest");
    let next = viewer.get(&format!("/api/v1/feeds/articles?before={}", articles["next"])).await?.json()?;
    assert_eq!(next["articles"][0]["title"], "article 2");
    assert_eq!(viewer.get(&format!("{path}/fetches")).await?.json()?[0]["articles_new"], 2);

    assert_eq!(http.json("DELETE", &format!("{path}/subscribers/ada"), &Value::Null).await?.status, 204);
    let shown = viewer.get(&path).await?.json()?;
    assert_eq!(shown["disabled_because"], "no subscribers");
    assert_eq!(http.post(&format!("{path}/fetch"), &Value::Null).await?.status, 400, "it is disabled");
    assert_eq!(http.post(&format!("{path}/enable"), &Value::Null).await?.json()?["enabled"], true);
    assert_eq!(http.post(&format!("{path}/fetch"), &Value::Null).await?.status, 202);
    assert_eq!(http.post(&format!("{path}/disable"), &Value::Null).await?.json()?["enabled"], false);
    let found = http.get(&format!("/api/v1/feeds/discover?url={}", site.url("/"))).await?.json()?;
    assert_eq!(found[0]["title"], "A feed");

    let opml = viewer.get("/api/v1/feeds/opml").await?.text;
    assert!(opml.contains("A site"), "{opml}");
    let list = opml.replace(&site.url("/"), "https://new.example/feed");
    for (query, added) in [("?dry_run=true", 1), ("", 1), ("", 0)] {
        let imported = http.send("POST", &format!("/api/v1/feeds/opml{query}"), list.clone()).await?;
        assert_eq!(imported.json()?["added"], added, "{query}: {}", imported.text);
    }
    assert_eq!(http.json("DELETE", &path, &Value::Null).await?.status, 204);
    assert_eq!(viewer.get(&path).await?.status, 404);
    let metrics = viewer.get("/metrics").await?.text;
    for name in ["sources_claimed_total ", "sources_fetched_total ", "sources_fetch_errors_total "] {
        assert!(metrics.lines().any(|line| line.starts_with(name)), "{name}");
    }
    assert!(metrics.contains("sources_fetch_duration_seconds_bucket{le="), "a histogram");
    let document = viewer.get("/api/openapi.json").await?.json()?;
    assert!(document["paths"]["/api/v1/feeds/sources"]["post"].is_object());
    Ok(())
}

/// Runs the command with the database of the test. Returns the exit code and what it printed.
fn command(test: &TestFeeds, args: &[&str]) -> Result<(i32, String)> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pitwheel-feeds"));
    let output = command.args(args).env("DATABASE_URL", test.db.url()).output()?;
    let text = String::from_utf8([output.stdout, output.stderr].concat())?;
    Ok((output.status.code().unwrap_or(-1), text))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_do_what_the_library_does() -> Result<()> {
    let test = TestFeeds::new().await?;
    let site = Site::start(|_| Reply::ok(feed(&["1", "2"]))).await?;
    let url = site.url("/");
    let run = |args: &[&str], code: i32, expected: &str| -> Result<()> {
        let (exit, text) = command(&test, args)?;
        assert!(exit == code && text.contains(expected), "{args:?}: {exit} {text}");
        Ok(())
    };
    run(&["sources", "list"], 0, "no sources")?;
    run(&["sources", "add", "feed"], 1, "http:// or https://")?;
    run(&["sources", "add", &url, "--name", "A site", "--every", "30", "--priority", "-2"], 0, "is added")?;
    run(&["subscribe", &url, "ada"], 0, "`ada` subscribes to source")?;
    run(&["fetch-due", "--max", "5"], 0, "1 sources were due, 0 fetched, 1 failed")?;
    run(&["sources", "show", &url], 0, "not public")?;
    let id = test.feeds.source_by_url(&url).await?.id;
    test.feeds.fetch_now(id).await?;
    run(&["fetch-due", "--allow-private-addresses", "-o", "json"], 0, "\"articles_new\": 2")?;
    run(&["articles", "list", "--subscriber", "ada"], 0, "article 2")?;
    run(&["sources", "list"], 0, "A site")?;
    run(&["sources", "disable", &id.to_string()], 0, "is disabled")?;
    run(&["sources", "enable", &id.to_string()], 0, "is enabled")?;
    run(&["unsubscribe", &url, "ada"], 0, "has 0 subscribers")?;
    run(&["unsubscribe", &url, "ada"], 2, "does not subscribe")?;
    run(&["sources", "show", "99"], 2, "there is no source `99`")?;
    let folder = ScratchFolder::create()?;
    let file = folder.path().join("feeds.opml");
    std::fs::write(&file, command(&test, &["opml", "export"])?.1.replace(&url, "https://new.example/"))?;
    let file = file.to_string_lossy();
    run(&["opml", "import", &file, "--dry-run"], 0, "1 sources would be added")?;
    run(&["opml", "import", &file], 0, "1 sources added")?;
    run(&["opml", "import", &file], 0, "0 sources added, 1 were there already")?;
    run(&["sources", "remove", &url], 0, "is removed")?;
    Ok(())
}
