//! Events of new articles, for the outbox.

use std::process::Command;

use anyhow::Result;
use pitwheel_feeds::{Error, Topic};
use serde_json::{Value, json};

use crate::site::{Reply, Site, feed};
use crate::support::TestFeeds;

const TOPIC: &str = "articles";

async fn with_events() -> Result<TestFeeds> {
    let TestFeeds { db, feeds } = TestFeeds::new().await?;
    Ok(TestFeeds { db, feeds: feeds.with_events(TOPIC.parse()?) })
}

/// Entity, topic, type and payload of the events that wait, in their order.
async fn events(test: &TestFeeds) -> Result<Vec<(String, String, String, Value)>> {
    let sql = "select entity_key, topic, type, payload from pitwheel.outbox order by id";
    let rows = test.db.client().await?.query(sql, &[]).await?;
    let event = |row: &tokio_postgres::Row| {
        Ok((row.get(0), row.get(1), row.get(2), serde_json::from_slice(row.get(3))?))
    };
    rows.iter().map(event).collect()
}

#[tokio::test]
async fn each_new_article_has_one_event_and_those_of_a_source_are_in_order() -> Result<()> {
    let test = with_events().await?;
    let site =
        Site::start(|request| match request.path.as_str() {
            "/other" => Reply::ok(feed(&["a"])),
            _ => Reply::ok(feed(&["new", "old"]).replace(
                "<guid>old</guid>",
                "<guid>old</guid><pubDate>Tue, 10 Jun 2025 04:00:00 GMT</pubDate>",
            )),
        })
        .await?;
    let id = test.add(&site.url_on(1, "/")).await?;
    assert_eq!(test.fetch_due(1).await?.articles_new, 2);

    let rows = test.feeds.articles(None, 10, Some(id), None).await?;
    let expected = |stored: &pitwheel_feeds::StoredArticle, guid: &str, published: Value| {
        let payload = json!({
            "id": stored.id, "source_id": id, "guid": guid, "url": format!("http://x.example/{guid}"),
            "title": format!("article {guid}"), "published_at": published
        });
        (format!("source-{id}"), TOPIC.to_owned(), "article.new".to_owned(), payload)
    };
    let old = expected(&rows[1], "old", json!("2025-06-10T04:00:00Z"));
    let new = expected(&rows[0], "new", Value::Null);
    assert_eq!(events(&test).await?, [old, new]);

    test.make_due(id).await?;
    test.add(&site.url_on(2, "/other")).await?;
    let stats = test.fetch_due(2).await?;
    assert_eq!((stats.sources_fetched, stats.articles_found, stats.articles_new), (2, 3, 1));
    let events = events(&test).await?;
    assert_eq!(events.len(), 3, "an article that is known has no second event: {events:?}");
    assert_eq!(events[2].3["guid"], "a");
    Ok(())
}

#[tokio::test]
async fn a_fetch_that_fails_or_is_not_recorded_has_no_events() -> Result<()> {
    let test = with_events().await?;
    let site = Site::start(|request| match request.path.as_str() {
        "/bad" => Reply::new("500 Internal Server Error", &[], feed(&["1"])),
        _ => Reply::ok(feed(&["1"])),
    })
    .await?;
    test.add(&site.url_on(1, "/bad")).await?;
    assert_eq!(test.fetch_due(1).await?.errors.len(), 1);
    assert_eq!(events(&test).await?, []);

    // The record is written after articles and events.
    let client = test.db.client().await?;
    client.batch_execute("alter table feeds.fetch add constraint none check (status <> 200)").await?;
    test.add(&site.url_on(2, "/good")).await?;
    assert_eq!(test.fetch_due(1).await?.sources_fetched, 0);
    assert_eq!(test.count("select count(*) from feeds.article").await?, 0);
    assert_eq!(events(&test).await?, [], "articles and events are written together or not at all");
    Ok(())
}

#[tokio::test]
async fn without_a_topic_there_are_no_events() -> Result<()> {
    let test = TestFeeds::new().await?;
    let site = Site::start(|_| Reply::ok(feed(&["1"]))).await?;
    test.add(&site.url("/")).await?;
    assert_eq!(test.fetch_due(1).await?.articles_new, 1);
    assert_eq!(events(&test).await?, []);
    Ok(())
}

#[tokio::test]
async fn the_event_of_a_huge_article_is_small() -> Result<()> {
    let test = with_events().await?;
    let item = |guid: &str, text: &str| {
        format!("<item><guid>{guid}</guid><title>{text}</title><description>{text}</description></item>")
    };
    let items = item(&"g".repeat(4096), &"ä".repeat(2_000_000)) + &item("other", "short");
    let document = format!("<rss version=\"2.0\"><channel><title>A feed</title>{items}</channel></rss>");
    let site = Site::start(move |_| Reply::ok(&document)).await?;
    test.add(&site.url("/")).await?;
    assert_eq!(test.fetch_due(1).await?.articles_new, 2);
    assert_eq!(events(&test).await?.len(), 2);
    let longest = test.count("select max(octet_length(payload))::bigint from pitwheel.outbox").await?;
    assert!((4096..10_000).contains(&longest), "{longest} bytes");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_takes_the_topic_and_refuses_one_that_kafka_cannot_have() -> Result<()> {
    let test = TestFeeds::new().await?;
    let site = Site::start(|_| Reply::ok(feed(&["1", "2"]))).await?;
    test.add(&site.url("/")).await?;
    let run = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pitwheel-feeds"));
        command.args(args).env("DATABASE_URL", test.db.url()).output()
    };
    for command in ["serve", "fetch-due"] {
        let refused = run(&[command, "--topic", "new articles"])?;
        let error = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2), "{error}");
        assert!(error.contains("topic `new articles` is not legal for Kafka"), "{error}");
    }
    assert!(site.requests().is_empty(), "nothing was fetched");
    assert!(matches!("".parse::<Topic>(), Err(Error::Engine(pitwheel::Error::Invalid(_)))));

    let fetched = run(&["fetch-due", "--topic", TOPIC, "--allow-private-addresses"])?;
    assert_eq!(fetched.status.code(), Some(0), "{}", String::from_utf8_lossy(&fetched.stderr));
    let events = events(&test).await?;
    assert_eq!(events.len(), 2);
    assert!(events.iter().all(|event| event.1 == TOPIC));
    Ok(())
}
