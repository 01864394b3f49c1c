//! The handler of `fetch_feed`: fetches a source outside of any transaction, then writes everything about it in one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pitwheel::{Context, Verdict};
use url::Url;

use crate::error::Error;
use crate::feeds::Feeds;
use crate::fetch::{Client, FetchError};
use crate::kinds::FetchFeed;
use crate::metrics;
use crate::schedule;
use crate::store::fetches::{self, Finished, Outcome, ToFetch, Written};
use crate::worker::batch::{Batches, Work};
use crate::worker::decide::decide;

/// What a number of fetches did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FetchStats {
    /// Sources that were claimed.
    pub sources_checked: u64,
    /// Sources whose fetch completed.
    pub sources_fetched: u64,
    /// Sources that are fetched later, because their host asked for a pause or is busy with other fetches.
    pub sources_postponed: u64,
    /// Articles in their documents.
    pub articles_found: u64,
    /// Articles that were new.
    pub articles_new: u64,
    /// The error of each source whose fetch failed, by the id of the source.
    pub errors: BTreeMap<i64, String>,
}

/// Fetches sources for the runs of their recurring jobs.
pub(crate) struct Fetcher {
    feeds: Feeds,
    client: Client,
    to_fetch: Batches<i64, Option<ToFetch>>,
    finished: Batches<Finished, Written>,
    stats: Mutex<FetchStats>,
}

impl Fetcher {
    pub(crate) fn new(feeds: &Feeds, client: Client) -> Fetcher {
        metrics::describe();
        Fetcher {
            feeds: feeds.clone(),
            client,
            to_fetch: Batches::new(),
            finished: Batches::new(),
            stats: Mutex::default(),
        }
    }

    pub(crate) fn stats(&self) -> FetchStats {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn count(&self, count: impl FnOnce(&mut FetchStats)) {
        count(&mut self.stats.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Reads and writes for the handlers, until it is dropped. Two transactions at a time: one waits for its commit while the
    /// other works.
    pub(crate) async fn run(self: Arc<Fetcher>) {
        tokio::join!(self.clone().run_reads(), self.clone().run_writes(), self.run_writes());
    }

    async fn run_reads(self: Arc<Fetcher>) {
        let read = |ids: Vec<i64>| -> Work<_> {
            let fetcher = self.clone();
            Box::pin(async move { logged("read sources", fetcher.read(&ids).await) })
        };
        self.to_fetch.run(read).await;
    }

    async fn run_writes(self: Arc<Fetcher>) {
        let write = |batch: Vec<Finished>| -> Work<_> {
            let fetcher = self.clone();
            Box::pin(async move { logged("record fetches", fetcher.write(&batch).await) })
        };
        self.finished.run(write).await;
    }

    async fn read(&self, ids: &[i64]) -> Result<Vec<Option<ToFetch>>, Error> {
        let rows = self.feeds.rows(include_str!("../../sql/to_fetch.sql"), &[&ids]).await?;
        let mut found: BTreeMap<i64, ToFetch> =
            rows.iter().map(|row| (row.get("id"), ToFetch::read(row))).collect();
        Ok(ids.iter().map(|id| found.remove(id)).collect())
    }

    /// One transaction for many fetches. If Postgres refuses it, one for each, so that a bad one does not take the others along.
    async fn write(&self, batch: &[Finished]) -> Result<Vec<Written>, Error> {
        match self.write_at_once(batch).await {
            Err(error) if batch.len() > 1 => {
                tracing::warn!(%error, fetches = batch.len(), "cannot record fetches together, trying one by one");
            }
            done => return done,
        }
        let mut written = Vec::new();
        for one in batch.chunks(1) {
            // What was not written is like a lost run here: the run fails, and is retried.
            let single = self.write_at_once(one).await;
            written.extend(logged("record a fetch", single).unwrap_or_else(|| vec![Written::Lost]));
        }
        Ok(written)
    }

    async fn write_at_once(&self, batch: &[Finished]) -> Result<Vec<Written>, Error> {
        let mut client = self.feeds.client().await?;
        let transaction = client.transaction().await?;
        let written = fetches::finish(&transaction, batch, self.feeds.event_topic()).await?;
        transaction.commit().await?;
        Ok(written)
    }

    /// The handler. No transaction is open while the network is waited for.
    pub(crate) async fn handle(&self, job: FetchFeed, context: Context) -> Result<Verdict, Error> {
        let id = job.source_id;
        let found = self.to_fetch.send(id).await;
        let found = found.ok_or(Error::Database("the source could not be read"))?;
        // It was disabled or removed while the run waited.
        let Some(source) = found else { return Ok(Verdict::complete().into()) };
        metrics::claimed();
        self.count(|stats| stats.sources_checked += 1);
        let started = Instant::now();
        let fetched = match Url::parse(&source.url) {
            Ok(url) => self.client.get(&url, &source.validators).await,
            Err(_) => Err(FetchError::Url(source.url.clone())),
        };
        match fetched {
            Err(FetchError::HostBusy { retry_in, .. }) => {
                self.count(|stats| stats.sources_postponed += 1);
                return Ok(Verdict::Snooze(retry_in.mul_f64(1.0 + fastrand::f64())));
            }
            Err(FetchError::HostPaused { retry_in, .. }) => return self.postpone(id, retry_in).await,
            _ => {}
        }
        let outcome = decide(id, &source, fetched, started.elapsed(), fastrand::f64());
        metrics::ended(outcome.error.is_none(), outcome.took);
        let summary = Summary::of(&outcome);
        match self.finished.send(Finished { context, outcome }).await {
            Some(Written::New(new)) => self.count(|stats| summary.count(stats, new)),
            Some(Written::Lost) => {}
            None => return Err(Error::Database("the fetch could not be recorded")),
        }
        Ok(Verdict::complete().into())
    }

    /// Snoozes a run until the pause that its host asked for has passed. The source shows when that is, and why.
    async fn postpone(&self, id: i64, pause: Duration) -> Result<Verdict, Error> {
        self.count(|stats| stats.sources_postponed += 1);
        let next = schedule::after_pause(pause, fastrand::f64());
        let seconds = next.wait.as_secs_f64();
        self.feeds.rows(include_str!("../../sql/postponed.sql"), &[&id, &seconds, &next.reason]).await?;
        Ok(Verdict::Snooze(next.wait))
    }
}

struct Summary {
    source_id: i64,
    found: usize,
    error: Option<String>,
}

impl Summary {
    fn of(outcome: &Outcome) -> Summary {
        let (source_id, found) = (outcome.source_id, outcome.articles.len());
        Summary { source_id, found, error: outcome.error.clone() }
    }

    fn count(self, stats: &mut FetchStats, new: i64) {
        stats.articles_found += self.found as u64;
        stats.articles_new += new.unsigned_abs();
        match self.error {
            Some(error) => drop(stats.errors.insert(self.source_id, error)),
            None => stats.sources_fetched += 1,
        }
    }
}

fn logged<T>(what: &str, result: Result<T, Error>) -> Option<T> {
    result.inspect_err(|error| tracing::warn!(%error, "cannot {what}")).ok()
}
