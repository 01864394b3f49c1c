//! Which sources are fetched, in which order, and how many.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use pitwheel_feeds::NewSource;
use pitwheel_testkit::wait_until;
use tokio::sync::Semaphore;

use crate::site::{Reply, Site, feed};
use crate::support::{TestFeeds, options};

#[tokio::test]
async fn only_sources_that_are_due_and_enabled_are_fetched() -> Result<()> {
    let test = TestFeeds::new().await?;
    let site = Site::start(|_| Reply::ok(feed(&["1"]))).await?;
    let fetched_lately = test.add(&site.url_on(1, "/recent")).await?;
    assert_eq!(test.fetch_due(10).await?.sources_fetched, 1);
    let disabled = test.add(&site.url_on(2, "/disabled")).await?;
    test.feeds.disable(disabled).await?;
    let new = test.add(&site.url_on(3, "/new")).await?;
    let before = test.source(fetched_lately).await?;

    let stats = test.fetch_due(10).await?;

    assert_eq!((stats.sources_checked, stats.sources_fetched), (1, 1));
    assert_eq!((stats.articles_found, stats.articles_new), (1, 1));
    assert_eq!(site.paths(), ["/recent", "/new"]);
    assert!(test.source(new).await?.last_fetched_at.is_some());
    assert_eq!(test.source(fetched_lately).await?.last_fetched_at, before.last_fetched_at);
    assert_eq!(test.source(disabled).await?.last_fetched_at, None);
    Ok(())
}

#[tokio::test]
async fn no_more_than_max_sources_are_fetched_even_when_others_are_not_due() -> Result<()> {
    let test = TestFeeds::new().await?;
    let site = Site::start(|_| Reply::ok(feed(&["1"]))).await?;
    // Older sources that are not due come first in every list.
    for host in 0..5 {
        test.add(&site.url_on(host, "/old")).await?;
    }
    assert_eq!(test.fetch_due(100).await?.sources_fetched, 5);
    for host in 5..8 {
        test.add(&site.url_on(host, "/due")).await?;
    }
    for (left, expected) in [(2, 2), (0, 0), (2, 1), (2, 0)] {
        let stats = test.fetch_due(left).await?;
        assert_eq!((stats.sources_checked, stats.sources_fetched), (expected, expected));
    }
    assert_eq!(test.count("select count(*) from feeds.fetch").await?, 8);
    Ok(())
}

#[tokio::test]
async fn priority_decides_and_then_the_longest_wait() -> Result<()> {
    let test = TestFeeds::new().await?;
    let site = Site::start(|_| Reply::ok(feed(&["1"]))).await?;
    for (host, path, priority) in [(1, "/low", -1), (2, "/first", 0), (3, "/second", 0), (4, "/high", 5)] {
        let url = site.url_on(host, path);
        test.feeds.add_source(&NewSource { priority: Some(priority), ..NewSource::new(url) }).await?;
    }
    for _ in 0..4 {
        assert_eq!(test.fetch_due(1).await?.sources_fetched, 1);
    }
    assert_eq!(site.paths(), ["/high", "/first", "/second", "/low"]);
    Ok(())
}

#[tokio::test]
async fn two_workers_at_once_never_fetch_one_source_twice() -> Result<()> {
    let test = TestFeeds::new().await?;
    let gate = Arc::new(Semaphore::new(0));
    let held = gate.clone();
    let site = Site::start(move |_| Reply::ok(feed(&["1"])).after(&held)).await?;
    test.add(&site.url_on(1, "/a")).await?;
    test.add(&site.url_on(2, "/b")).await?;
    let open = async {
        // Both are fetched at the same time, and neither holds a transaction or a lock.
        wait_until("both sources to be fetched", || async { Ok(site.requests().len() == 2) }).await?;
        let idle = "select count(*) from pg_stat_activity
            where datname = current_database() and state like 'idle in transaction%'";
        assert_eq!(test.count(idle).await?, 0, "no transaction is open during a fetch");
        gate.add_permits(2);
        anyhow::Ok(())
    };
    let (one, other, opened) = tokio::join!(test.fetch_due(1), test.fetch_due(1), open);
    opened?;
    assert_eq!((one?.sources_fetched, other?.sources_fetched), (1, 1));
    let mut paths = site.paths();
    paths.sort();
    assert_eq!(paths, ["/a", "/b"]);
    Ok(())
}

#[tokio::test]
async fn a_failing_source_is_recorded_and_does_not_starve_the_next() -> Result<()> {
    let test = TestFeeds::new().await?;
    let site = Site::start(|request| match request.path.as_str() {
        "/bad" => Reply::new("500 Internal Server Error", &[], "no"),
        _ => Reply::ok(feed(&["1"])),
    })
    .await?;
    let bad = test.add(&site.url_on(1, "/bad")).await?;
    let good = test.add(&site.url_on(2, "/good")).await?;

    // A failure that were only rolled back would be the longest waiting again, and the second call would pick it too.
    let first = test.fetch_due(1).await?;
    assert_eq!((first.sources_checked, first.sources_fetched), (1, 0));
    assert!(first.errors[&bad].contains("500"), "{:?}", first.errors);
    let second = test.fetch_due(1).await?;
    assert_eq!((second.sources_checked, second.sources_fetched), (1, 1));
    assert_eq!(test.fetch_due(10).await?.sources_checked, 0, "it backs off");

    let source = test.source(bad).await?;
    assert_eq!(source.consecutive_failures, 1);
    assert!(source.last_error.is_some_and(|error| error.contains("500")));
    assert_eq!(source.next_fetch_reason.as_deref(), Some("failed 1 time in a row"));
    assert_eq!(test.titles(good).await?, ["article 1"]);
    assert_eq!(test.count("select count(*) from feeds.fetch where error is not null").await?, 1);
    Ok(())
}

#[tokio::test]
async fn the_next_fetch_mirrors_the_recurring_job() -> Result<()> {
    let test = TestFeeds::new().await?;
    let site = Site::start(|_| Reply::ok(feed(&["1"]))).await?;
    let id = test.add(&site.url("/")).await?;
    let differs =
        "select count(*) from feeds.source join pitwheel.recurring on recurring.id = source.recurring_id
        left join pitwheel.job on job.recurring = recurring.id
        where source.next_fetch_at is distinct from recurring.next_run_at
           or (source.disabled_because is null) is distinct from recurring.enabled
           or (job.id is not null) is distinct from recurring.enabled";
    assert_eq!(test.count(differs).await?, 0);
    test.fetch_due(1).await?;
    let source = test.source(id).await?;
    assert_eq!(source.next_fetch_reason.as_deref(), Some("the interval of the source"));
    assert_eq!(test.count(differs).await?, 0, "{source:?}");
    let hours =
        "select count(*) from feeds.source where next_fetch_at between now() + interval '59 minutes' and
        now() + interval '67 minutes'";
    assert_eq!(test.count(hours).await?, 1, "an hour and a tenth at most");
    Ok(())
}

#[tokio::test]
async fn all_due_sources_of_one_host_are_fetched_by_one_call() -> Result<()> {
    let test = TestFeeds::new().await?;
    let site = Site::start(|_| Reply::ok(feed(&["1"]))).await?;
    for n in 0..8 {
        test.add(&site.url(&format!("/{n}"))).await?;
    }
    let mut polite = options();
    // The last turn comes later than a worker of `serve` would wait for it.
    polite.fetch.host_gap = Duration::from_millis(250);
    let stats = pitwheel_feeds::fetch_due(&test.feeds, polite, 100, pending(), |_| ()).await?;
    assert_eq!((stats.sources_checked, stats.sources_fetched), (8, 8));
    assert_eq!(site.requests().len(), 8);
    Ok(())
}

#[tokio::test]
async fn a_host_that_asks_for_a_pause_is_not_waited_for() -> Result<()> {
    let test = TestFeeds::new().await?;
    let site = Site::start(|_| Reply::new("429 Too Many Requests", &[("retry-after", "600")], "")).await?;
    for n in 0..3 {
        test.add(&site.url(&format!("/{n}"))).await?;
    }
    let stats = test.fetch_due(10).await?;
    let failed = stats.errors.len() as u64;
    assert_eq!((stats.sources_checked, failed + stats.sources_postponed), (3, 3));
    assert!(stats.sources_postponed > 0, "two are fetched at a time, the third waits for the end of one");
    Ok(())
}
