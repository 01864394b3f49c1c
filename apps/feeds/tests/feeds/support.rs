//! A database with the feeds in it, and workers with options that suit tests.

use std::future::pending;
use std::time::Duration;

use anyhow::Result;
use pitwheel_feeds::{Feeds, FetchStats, NewSource, Source, WorkerOptions};
use pitwheel_testkit::{TestDb, wait_until};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A database with the feeds in it.
pub(crate) struct TestFeeds {
    pub(crate) db: TestDb,
    pub(crate) feeds: Feeds,
}

impl TestFeeds {
    pub(crate) async fn new() -> Result<TestFeeds> {
        let db = TestDb::new().await?;
        let feeds = Feeds::on(db.pitwheel(), db.url())?;
        feeds.migrate().await?;
        Ok(TestFeeds { db, feeds })
    }

    pub(crate) async fn add(&self, url: &str) -> Result<i64> {
        Ok(self.feeds.add_source(&NewSource::new(url)).await?.0)
    }

    pub(crate) async fn source(&self, id: i64) -> Result<Source> {
        Ok(self.feeds.source(id).await?)
    }

    /// Fetches what is due, at most `max`.
    pub(crate) async fn fetch_due(&self, max: usize) -> Result<FetchStats> {
        Ok(pitwheel_feeds::fetch_due(&self.feeds, options(), max, pending(), |_| ()).await?)
    }

    /// Makes the source due, as if the time had passed.
    pub(crate) async fn make_due(&self, id: i64) -> Result<()> {
        self.feeds.fetch_now(id).await?;
        Ok(())
    }

    pub(crate) async fn titles(&self, source: i64) -> Result<Vec<String>> {
        let articles = self.feeds.articles(None, 100, Some(source), None).await?;
        Ok(articles.into_iter().filter_map(|article| article.title).collect())
    }

    pub(crate) async fn count(&self, sql: &str) -> Result<i64> {
        self.db.count(sql).await
    }

    /// Waits until a query returns a number above zero.
    pub(crate) async fn until(&self, what: &str, sql: &str) -> Result<()> {
        wait_until(what, || async { Ok(self.count(sql).await? > 0) }).await
    }

    /// Starts a worker.
    pub(crate) fn start(&self, options: WorkerOptions) -> Running {
        let (stop, stopped) = oneshot::channel::<()>();
        let feeds = self.feeds.clone();
        let task = tokio::spawn(async move {
            let shutdown = async { drop(stopped.await) };
            pitwheel_feeds::run(&feeds, options, shutdown).await
        });
        Running { stop, task }
    }
}

/// Local servers may be fetched, without a gap.
pub(crate) fn options() -> WorkerOptions {
    let mut options = WorkerOptions::default();
    options.fetch.allow_private = true;
    options.fetch.host_gap = Duration::ZERO;
    options
}

pub(crate) struct Running {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<FetchStats, pitwheel_feeds::Error>>,
}

impl Running {
    pub(crate) async fn stop(self) -> Result<FetchStats> {
        let _ = self.stop.send(());
        Ok(self.task.await??)
    }
}
