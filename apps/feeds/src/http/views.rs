//! What the API and `-o json` show.

use pitwheel_server::views::time;
use serde::Serialize;
use utoipa::ToSchema;

use crate::store::{FetchRecord, Source, StoredArticle};
use crate::worker::FetchStats;

/// A source.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = FeedSource)]
pub struct SourceView {
    id: i64,
    name: String,
    url: String,
    category: Option<String>,
    enabled: bool,
    /// Why it is not fetched: `no subscribers`, `gone` or `operator`.
    disabled_because: Option<String>,
    /// From -9 to 9; higher is fetched first.
    priority: i16,
    fetch_interval_minutes: i32,
    created_at: String,
    /// The last fetch that succeeded.
    last_fetched_at: Option<String>,
    /// The next fetch; null while disabled.
    next_fetch_at: Option<String>,
    /// Why the next fetch is then.
    next_fetch_reason: Option<String>,
    /// Fetches that failed in a row.
    consecutive_failures: i32,
    last_error: Option<String>,
    /// Where permanent redirects lead, before the new URL is adopted.
    moved_to: Option<String>,
    subscribers: i64,
    /// Until when a hub pushes new articles.
    push_until: Option<String>,
    /// The recurring job that fetches it.
    recurring_id: Option<i64>,
}

impl From<Source> for SourceView {
    fn from(source: Source) -> SourceView {
        SourceView {
            id: source.id,
            name: source.name,
            url: source.url,
            category: source.category,
            enabled: source.disabled_because.is_none(),
            disabled_because: source.disabled_because,
            priority: source.priority,
            fetch_interval_minutes: source.fetch_interval_minutes,
            created_at: time(source.created_at),
            last_fetched_at: source.last_fetched_at.map(time),
            next_fetch_at: source.next_fetch_at.map(time),
            next_fetch_reason: source.next_fetch_reason,
            consecutive_failures: source.consecutive_failures,
            last_error: source.last_error,
            moved_to: source.moved_to,
            subscribers: source.subscribers,
            push_until: source.push_until.map(time),
            recurring_id: source.recurring_id,
        }
    }
}

/// An article.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = FeedArticle)]
pub struct ArticleView {
    id: i64,
    source_id: i64,
    /// The name of the source.
    source: String,
    found_at: String,
    published_at: Option<String>,
    updated_at: Option<String>,
    url: Option<String>,
    title: Option<String>,
    author: Option<String>,
    /// As it was in the feed: HTML is not sanitized.
    content: Option<String>,
}

impl From<StoredArticle> for ArticleView {
    fn from(article: StoredArticle) -> ArticleView {
        ArticleView {
            id: article.id,
            source_id: article.source_id,
            source: article.source,
            found_at: time(article.found_at),
            published_at: article.published_at.map(time),
            updated_at: article.updated_at.map(time),
            url: article.url,
            title: article.title,
            author: article.author,
            content: article.content,
        }
    }
}

/// A fetch of a source, or a push of its hub.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = FeedFetch)]
pub struct FetchView {
    id: i64,
    fetched_at: String,
    /// The HTTP status; null: no response, or a push.
    status: Option<i32>,
    /// Bytes on the network.
    bytes: i32,
    duration_ms: i32,
    articles_found: i32,
    articles_new: i32,
    is_push: bool,
    next_fetch_at: Option<String>,
    next_fetch_reason: Option<String>,
    error: Option<String>,
}

impl From<FetchRecord> for FetchView {
    fn from(fetch: FetchRecord) -> FetchView {
        FetchView {
            id: fetch.id,
            fetched_at: time(fetch.fetched_at),
            status: fetch.status,
            bytes: fetch.bytes,
            duration_ms: fetch.duration_ms,
            articles_found: fetch.articles_found,
            articles_new: fetch.articles_new,
            is_push: fetch.is_push,
            next_fetch_at: fetch.next_fetch_at.map(time),
            next_fetch_reason: fetch.next_fetch_reason,
            error: fetch.error,
        }
    }
}

/// What a number of fetches did.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = FeedFetchStats)]
pub struct FetchStatsView {
    /// Sources that were claimed.
    sources_checked: u64,
    /// Sources whose fetch completed.
    sources_fetched: u64,
    /// Sources that are fetched later: their host asked for a pause.
    sources_postponed: u64,
    articles_found: u64,
    articles_new: u64,
    errors: Vec<FetchErrorView>,
}

/// Why the fetch of a source failed.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = FeedFetchError)]
pub struct FetchErrorView {
    source_id: i64,
    error: String,
}

impl From<FetchStats> for FetchStatsView {
    fn from(stats: FetchStats) -> FetchStatsView {
        let errors = stats.errors.into_iter().map(|(source_id, error)| FetchErrorView { source_id, error });
        FetchStatsView {
            sources_checked: stats.sources_checked,
            sources_fetched: stats.sources_fetched,
            sources_postponed: stats.sources_postponed,
            articles_found: stats.articles_found,
            articles_new: stats.articles_new,
            errors: errors.collect(),
        }
    }
}
