//! Subscribers enable and disable the recurring job of a source.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use futures_util::future::join_all;
use pitwheel_testkit::wait_until;
use tokio::sync::Semaphore;

use crate::site::{Reply, Site, feed};
use crate::support::TestFeeds;

const ENABLED: &str = "select count(*) from pitwheel.recurring where kind = 'fetch_feed' and enabled";
const LIVE: &str = "select count(*) from pitwheel.job where kind = 'fetch_feed'";

#[tokio::test]
async fn the_first_subscriber_enables_and_the_last_disables() -> Result<()> {
    let test = TestFeeds::new().await?;
    let site = Site::start(|_| Reply::ok(feed(&["1"]))).await?;
    let url = site.url("/");
    let ada = test.feeds.subscribe(&url, "ada").await?;
    assert!(ada.is_new);
    assert!(!test.feeds.subscribe(&url, "ada").await?.is_new);
    test.feeds.subscribe(&url, "ben").await?;
    assert_eq!((test.count(ENABLED).await?, test.count(LIVE).await?), (1, 1));

    assert!(test.feeds.unsubscribe(ada.source_id, "ada").await?);
    assert!(!test.feeds.unsubscribe(ada.source_id, "ada").await?);
    assert_eq!((test.count(ENABLED).await?, test.count(LIVE).await?), (1, 1));
    assert!(test.feeds.unsubscribe(ada.source_id, "ben").await?);
    assert_eq!((test.count(ENABLED).await?, test.count(LIVE).await?), (0, 0));
    let source = test.source(ada.source_id).await?;
    assert_eq!((source.disabled_because.as_deref(), source.next_fetch_at), (Some("no subscribers"), None));

    test.feeds.subscribe(&url, "cy").await?;
    assert_eq!((test.count(ENABLED).await?, test.count(LIVE).await?), (1, 1));
    Ok(())
}

#[tokio::test]
async fn subscribing_at_once_creates_one_source_and_one_job() -> Result<()> {
    let test = TestFeeds::new().await?;
    let names: Vec<String> = (0..8).map(|n| format!("subscriber {n}")).collect();
    let all = names.iter().map(|name| test.feeds.subscribe("https://a.example/feed", name));
    for subscribed in join_all(all).await {
        assert!(subscribed?.is_new);
    }
    assert_eq!(test.count("select count(*) from feeds.source").await?, 1);
    assert_eq!(test.count("select count(*) from feeds.subscription").await?, 8);
    assert_eq!((test.count(ENABLED).await?, test.count(LIVE).await?), (1, 1));
    Ok(())
}

#[tokio::test]
async fn a_resubscribe_keeps_the_time_or_fetches_at_once_if_it_has_passed() -> Result<()> {
    let test = TestFeeds::new().await?;
    let site = Site::start(|_| Reply::ok(feed(&["1"]))).await?;
    let id = test.feeds.subscribe(&site.url("/"), "ada").await?.source_id;
    test.fetch_due(1).await?;
    let planned = test.source(id).await?.next_fetch_at.context("it is planned")?;

    test.feeds.unsubscribe(id, "ada").await?;
    test.feeds.subscribe(&site.url("/"), "ada").await?;
    assert_eq!(test.source(id).await?.next_fetch_at, Some(planned));
    assert_eq!(test.fetch_due(1).await?.sources_checked, 0, "it is not due");

    test.feeds.unsubscribe(id, "ada").await?;
    let passed = "with moved as (
            update pitwheel.recurring set next_run_at = now() - interval '3 hours', anchor_at = now() - interval '3 hours'
            where kind = 'fetch_feed' returning 1
        ) select count(*) from moved";
    assert_eq!(test.count(passed).await?, 1);
    test.feeds.subscribe(&site.url("/"), "ada").await?;
    assert_eq!(test.count("select count(*) from feeds.source where next_fetch_at <= now()").await?, 1);
    assert_eq!(test.fetch_due(1).await?.sources_fetched, 1);
    Ok(())
}

#[tokio::test]
async fn a_source_disabled_while_it_is_fetched_finishes_and_is_not_fetched_again() -> Result<()> {
    let test = TestFeeds::new().await?;
    let gate = Arc::new(Semaphore::new(0));
    let held = gate.clone();
    let site = Site::start(move |_| Reply::ok(feed(&["1"])).after(&held)).await?;
    let id = test.feeds.subscribe(&site.url("/"), "ada").await?.source_id;
    let leave = async {
        wait_until("the source to be fetched", || async { Ok(site.requests().len() == 1) }).await?;
        test.feeds.unsubscribe(id, "ada").await?;
        gate.add_permits(1);
        anyhow::Ok(())
    };
    let (stats, left) = tokio::join!(test.fetch_due(1), leave);
    left?;
    assert_eq!(stats?.articles_new, 1, "the fetch finishes");
    let source = test.source(id).await?;
    assert_eq!((source.disabled_because.as_deref(), source.next_fetch_at), (Some("no subscribers"), None));
    assert_eq!((test.count(ENABLED).await?, test.count(LIVE).await?), (0, 0));
    assert_eq!(test.fetch_due(1).await?.sources_checked, 0);
    Ok(())
}

#[tokio::test]
async fn a_source_that_a_person_disabled_is_not_enabled_by_a_subscriber() -> Result<()> {
    let test = TestFeeds::new().await?;
    let id = test.add("https://a.example/feed").await?;
    test.feeds.disable(id).await?;
    test.feeds.subscribe("https://a.example/feed", "ada").await?;
    assert_eq!(test.source(id).await?.disabled_because.as_deref(), Some("operator"));
    assert_eq!((test.count(ENABLED).await?, test.count(LIVE).await?), (0, 0));
    test.feeds.enable(id).await?;
    assert_eq!((test.count(ENABLED).await?, test.count(LIVE).await?), (1, 1));
    test.feeds.remove(id).await?;
    let left = "select (select count(*) from feeds.source) + (select count(*) from feeds.subscription)
        + (select count(*) from pitwheel.recurring where kind = 'fetch_feed')";
    assert_eq!((test.count(left).await?, test.count(LIVE).await?), (0, 0));
    Ok(())
}
