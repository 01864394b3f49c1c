//! Workers that die or lose their claim during a fetch.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Result;
use pitwheel_testkit::{ChildProcess, wait_until};
use tokio::sync::Semaphore;

use crate::site::{Reply, Request, Site, feed};
use crate::support::{TestFeeds, options};

/// Short, so that the test does not take long; renewed four times in it.
const LEASE: Duration = Duration::from_secs(2);

#[tokio::test]
async fn a_killed_worker_loses_its_fetch_to_another_within_the_lease() -> Result<()> {
    let test = TestFeeds::new().await?;
    let calls = Arc::new(AtomicUsize::new(0));
    let count = calls.clone();
    let site = Site::start(move |_| match count.fetch_add(1, Ordering::SeqCst) {
        // The first fetch never ends.
        0 => Reply::raw("HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n<rss").then_hang(),
        _ => Reply::ok(feed(&["1", "2"])),
    })
    .await?;
    let id = test.add(&site.url("/")).await?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_pitwheel-feeds"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--allow-private-addresses", "--lease", "2"]);
    command.env("DATABASE_URL", test.db.url());
    let mut process = ChildProcess::spawn(&command, Stdio::null(), Stdio::null())?;
    wait_until("the source to be fetched", || async { Ok(site.requests().len() == 1) }).await?;
    process.kill()?;

    let mut other = options();
    other.lease = LEASE;
    let worker = test.start(other);
    test.until("another worker to fetch it", "select count(*) from feeds.fetch").await?;
    let stats = worker.stop().await?;

    assert_eq!((stats.sources_fetched, stats.articles_new), (1, 2));
    assert_eq!(test.titles(id).await?.len(), 2, "no article twice");
    assert_eq!(site.requests().len(), 2);
    assert_eq!(test.source(id).await?.consecutive_failures, 0, "a crash is no failure of the source");
    Ok(())
}

#[tokio::test]
async fn a_late_fetch_writes_nothing_beside_the_one_that_took_over() -> Result<()> {
    let test = TestFeeds::new().await?;
    let calls = Arc::new(AtomicUsize::new(0));
    let gate = Arc::new(Semaphore::new(0));
    let (count, held) = (calls.clone(), gate.clone());
    let site = Site::start(move |_| match count.fetch_add(1, Ordering::SeqCst) {
        0 => Reply::ok(feed(&["late"])).after(&held),
        _ => Reply::ok(feed(&["1"])),
    })
    .await?;
    let id = test.add(&site.url("/")).await?;
    let take_over = async {
        wait_until("the source to be fetched", || async { Ok(site.requests().len() == 1) }).await?;
        // As if the lease of the first worker had expired and a sweep had seen it.
        let lost = "with lost as (
                update pitwheel.job set holder = null, claimed_at = null where kind = 'fetch_feed' returning id
            ) select count(*) from lost";
        assert_eq!(test.count(lost).await?, 1);
        let stats = test.fetch_due(1).await?;
        assert_eq!(stats.articles_new, 1);
        gate.add_permits(1);
        anyhow::Ok(())
    };
    let (late, took_over) = tokio::join!(test.fetch_due(1), take_over);
    took_over?;
    let late = late?;
    assert_eq!((late.sources_checked, late.sources_fetched, late.articles_new), (1, 0, 0));
    assert_eq!(test.titles(id).await?, ["article 1"], "the late one wrote no article");
    assert_eq!(test.count("select count(*) from feeds.fetch").await?, 1, "and no record");
    assert_eq!(test.count("select count(*) from pitwheel.job where kind = 'fetch_feed'").await?, 1);
    Ok(())
}

#[tokio::test]
async fn an_interrupted_fetch_due_releases_its_runs_at_once() -> Result<()> {
    let test = TestFeeds::new().await?;
    let answer = |_: &Request| Reply::raw("HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n<rss").then_hang();
    let site = Site::start(answer).await?;
    test.add(&site.url("/")).await?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_pitwheel-feeds"));
    command.args(["fetch-due", "--allow-private-addresses"]).env("DATABASE_URL", test.db.url());
    let mut process = ChildProcess::spawn(&command, Stdio::null(), Stdio::null())?;
    wait_until("the source to be fetched", || async { Ok(site.requests().len() == 1) }).await?;
    process.signal("TERM")?;
    let status = process.wait()?;

    assert_eq!(status.code(), Some(1), "not all that was due is fetched");
    let due = "select count(*) from pitwheel.job
        where kind = 'fetch_feed' and holder is null and attempt = 0 and run_at <= now()";
    assert_eq!(test.count(due).await?, 1, "another worker may fetch it now");
    assert_eq!(test.count("select count(*) from feeds.fetch").await?, 0);
    Ok(())
}
