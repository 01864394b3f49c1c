//! What became of fetches. Articles, the record of the fetch and the settle of its run commit together or not at all.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use deadpool_postgres::Transaction;
use pitwheel::transaction::tokio_postgres as engine;
use pitwheel::{Completion, Context, Settled, Verdict};
use tokio_postgres::Row;
use url::Url;

use crate::error::Error;
use crate::fetch::Validators;
use crate::kinds::SubscribeWebsub;
use crate::parse::Article;
use crate::schedule::NextFetch;
use crate::store::articles;
use crate::store::events::Topic;
use crate::store::sources::{self, Disabled};

/// A permanent redirect is adopted when it was seen this many times in a row: some servers redirect everything for a while.
const MOVES_SEEN: i32 = 5;

/// What a fetch of a source needs.
#[derive(Debug, Clone)]
pub(crate) struct ToFetch {
    pub(crate) url: String,
    pub(crate) validators: Validators,
    pub(crate) interval: Duration,
    pub(crate) consecutive_failures: u32,
    pub(crate) moved_to: Option<String>,
    pub(crate) moved_sightings: i32,
    pub(crate) hub: Hub,
    pub(crate) is_pushed: bool,
}

/// The hub that a source names, and its topic there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Hub {
    pub(crate) hub_url: Option<String>,
    pub(crate) topic_url: Option<String>,
}

impl ToFetch {
    pub(crate) fn read(row: &Row) -> ToFetch {
        let minutes: i32 = row.get("fetch_interval_minutes");
        let failures: i32 = row.get("consecutive_failures");
        ToFetch {
            url: row.get("url"),
            validators: Validators { etag: row.get("etag"), last_modified: row.get("last_modified") },
            interval: Duration::from_secs(u64::from(minutes.unsigned_abs()) * 60),
            consecutive_failures: failures.unsigned_abs(),
            moved_to: row.get("moved_to"),
            moved_sightings: row.get("moved_sightings"),
            hub: Hub { hub_url: row.get("hub_url"), topic_url: row.get("topic_url") },
            is_pushed: row.get("is_pushed"),
        }
    }

    /// Whether this redirect was seen often enough.
    pub(crate) fn adopts(&self, moved_to: &Url) -> bool {
        self.moved_to.as_deref() == Some(moved_to.as_str()) && self.moved_sightings + 1 >= MOVES_SEEN
    }
}

/// What became of a fetch.
#[derive(Debug, Clone)]
pub(crate) struct Outcome {
    pub(crate) source_id: i64,
    pub(crate) status: Option<u16>,
    pub(crate) bytes: usize,
    pub(crate) took: Duration,
    pub(crate) articles: Vec<Article>,
    pub(crate) validators: Validators,
    pub(crate) moved_to: Option<Url>,
    /// The URL is replaced by `moved_to`.
    pub(crate) adopts: bool,
    pub(crate) hub: Hub,
    /// A job asks the hub for a subscription.
    pub(crate) subscribes: bool,
    pub(crate) next: NextFetch,
    pub(crate) error: Option<String>,
    /// The source is gone for good.
    pub(crate) gone: bool,
}

/// A fetch that has ended, and the claim of its run.
pub(crate) struct Finished {
    pub(crate) context: Context,
    pub(crate) outcome: Outcome,
}

/// What was written for a fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Written {
    /// With so many new articles.
    New(i64),
    /// Nothing: the run belongs to another worker now.
    Lost,
}

/// Settles the runs of many fetches in one transaction, and records what became of them. Nothing is written for a run that was
/// lost, or whose source was removed. With a topic, each new article has an event.
pub(crate) async fn finish(
    transaction: &Transaction<'_>,
    finished: &[Finished],
    topic: Option<&Topic>,
) -> Result<Vec<Written>, Error> {
    // The sources first, and in the order of their ids: whoever subscribes to one waits here, and not in a circle.
    let ids: Vec<i64> = finished.iter().map(|one| one.outcome.source_id).collect();
    let statement = transaction.prepare_cached(include_str!("../../sql/lock_sources.sql")).await?;
    let locked = transaction.query(&statement, &[&ids]).await?;
    let locked: HashMap<i64, SystemTime> = locked.iter().map(|row| (row.get("id"), row.get("now"))).collect();
    let completions = finished.iter().map(|one| (&one.context, completion(one, &locked))).collect();
    let completed = engine::complete_many(transaction, completions).await?;
    let written = finished.iter().zip(&completed).filter(|(one, completed)| {
        completed.settled == Settled::Written && locked.contains_key(&one.outcome.source_id)
    });
    let mut outcomes = Vec::new();
    for (one, completed) in written {
        let next_at = completed.next_run.as_ref().map(|next| next.at);
        outcomes.push((&one.outcome, next_at));
    }
    let new = record(transaction, &outcomes, topic).await?;
    let result = finished.iter().zip(&completed).map(|(one, completed)| match completed.settled {
        Settled::Written => Written::New(new.get(&one.outcome.source_id).copied().unwrap_or_default()),
        Settled::Lost => Written::Lost,
    });
    Ok(result.collect())
}

/// How the run of a fetch completes. The next time is counted by the clock of the database.
fn completion(one: &Finished, locked: &HashMap<i64, SystemTime>) -> Completion {
    let mut completion = Verdict::complete();
    let outcome = &one.outcome;
    if let Some(now) = locked.get(&outcome.source_id) {
        completion = completion.next_at(*now + outcome.next.wait);
        if outcome.subscribes {
            let job = SubscribeWebsub { source_id: outcome.source_id, subscribe: true };
            completion = completion.then(job.into_job());
        }
    }
    completion
}

async fn record(
    transaction: &Transaction<'_>,
    outcomes: &[(&Outcome, Option<SystemTime>)],
    topic: Option<&Topic>,
) -> Result<HashMap<i64, i64>, Error> {
    let mut all = Vec::new();
    for (outcome, _) in outcomes {
        all.extend(outcome.articles.iter().map(|article| (outcome.source_id, article)));
    }
    let new = articles::add(transaction, &all, topic).await?;
    Columns::new(outcomes, &new).write(transaction).await?;
    for (outcome, _) in outcomes {
        if outcome.gone {
            let source = sources::lock(transaction, outcome.source_id).await?;
            if let Some(source) = source {
                sources::disable(transaction, &source, Disabled::Gone).await?;
            }
        }
        if let Some(url) = outcome.moved_to.as_ref().filter(|_| outcome.adopts) {
            let statement = transaction.prepare_cached(include_str!("../../sql/adopt_url.sql")).await?;
            transaction.execute(&statement, &[&outcome.source_id, &url.as_str()]).await?;
        }
    }
    Ok(new)
}

#[derive(Default)]
struct Columns<'a> {
    sources: Vec<i64>,
    statuses: Vec<Option<i32>>,
    bytes: Vec<i32>,
    durations_ms: Vec<i32>,
    found: Vec<i32>,
    new: Vec<i32>,
    errors: Vec<Option<&'a str>>,
    next_at: Vec<Option<SystemTime>>,
    reasons: Vec<&'a str>,
    etags: Vec<Option<&'a str>>,
    last_modified: Vec<Option<&'a str>>,
    moved_to: Vec<Option<&'a str>>,
    hubs: Vec<Option<&'a str>>,
    topics: Vec<Option<&'a str>>,
}

impl<'a> Columns<'a> {
    fn new(outcomes: &[(&'a Outcome, Option<SystemTime>)], new: &HashMap<i64, i64>) -> Columns<'a> {
        let mut columns = Columns::default();
        for (outcome, next_at) in outcomes {
            let count = new.get(&outcome.source_id).copied().unwrap_or_default();
            columns.sources.push(outcome.source_id);
            columns.statuses.push(outcome.status.map(i32::from));
            columns.bytes.push(small(outcome.bytes));
            columns.durations_ms.push(i32::try_from(outcome.took.as_millis()).unwrap_or(i32::MAX));
            columns.found.push(small(outcome.articles.len()));
            columns.new.push(i32::try_from(count).unwrap_or(i32::MAX));
            columns.errors.push(outcome.error.as_deref());
            columns.next_at.push(*next_at);
            columns.reasons.push(&outcome.next.reason);
            columns.etags.push(outcome.validators.etag.as_deref());
            columns.last_modified.push(outcome.validators.last_modified.as_deref());
            columns.moved_to.push(outcome.moved_to.as_ref().map(Url::as_str));
            columns.hubs.push(outcome.hub.hub_url.as_deref());
            columns.topics.push(outcome.hub.topic_url.as_deref());
        }
        columns
    }

    async fn write(&self, transaction: &Transaction<'_>) -> Result<(), Error> {
        let statement = transaction.prepare_cached(include_str!("../../sql/record_fetches.sql")).await?;
        transaction
            .execute(
                &statement,
                &[
                    &self.sources,
                    &self.statuses,
                    &self.bytes,
                    &self.durations_ms,
                    &self.found,
                    &self.new,
                    &self.errors,
                    &self.next_at,
                    &self.reasons,
                    &self.etags,
                    &self.last_modified,
                    &self.moved_to,
                    &self.hubs,
                    &self.topics,
                ],
            )
            .await?;
        Ok(())
    }
}

fn small(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// One line of the history of a source.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct FetchRecord {
    /// Its id.
    pub id: i64,
    /// When it ended.
    pub fetched_at: SystemTime,
    /// The HTTP status; `None`: no response.
    pub status: Option<i32>,
    /// Bytes on the network.
    pub bytes: i32,
    /// How long it took.
    pub duration_ms: i32,
    /// Articles in the document.
    pub articles_found: i32,
    /// Those that were new.
    pub articles_new: i32,
    /// Whether a hub pushed it.
    pub is_push: bool,
    /// When the next fetch was planned then.
    pub next_fetch_at: Option<SystemTime>,
    /// Why it was planned for that time, for people.
    pub next_fetch_reason: Option<String>,
    /// Why it failed.
    pub error: Option<String>,
}

impl FetchRecord {
    pub(crate) fn read(row: &Row) -> FetchRecord {
        FetchRecord {
            id: row.get("id"),
            fetched_at: row.get("fetched_at"),
            status: row.get("status"),
            bytes: row.get("bytes"),
            duration_ms: row.get("duration_ms"),
            articles_found: row.get("articles_found"),
            articles_new: row.get("articles_new"),
            is_push: row.get("is_push"),
            next_fetch_at: row.get("next_fetch_at"),
            next_fetch_reason: row.get("next_fetch_reason"),
            error: row.get("error"),
        }
    }
}
