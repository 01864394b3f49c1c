//! Articles, each stored once.

use std::collections::HashMap;
use std::time::SystemTime;

use deadpool_postgres::Transaction;
use pitwheel::NewEvent;
use pitwheel::transaction::tokio_postgres as engine;
use tokio_postgres::Row;

use crate::error::Error;
use crate::parse::Article;
use crate::store::events::Topic;

/// An article that is stored.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StoredArticle {
    /// Its id; a newer article has a higher one.
    pub id: i64,
    /// The source that it was found in.
    pub source_id: i64,
    /// The name of that source.
    pub source: String,
    /// When it was found.
    pub found_at: SystemTime,
    /// When it was published, by its own account.
    pub published_at: Option<SystemTime>,
    /// When it was changed, by its own account.
    pub updated_at: Option<SystemTime>,
    /// Its page.
    pub url: Option<String>,
    /// Its title.
    pub title: Option<String>,
    /// Its authors.
    pub author: Option<String>,
    /// Its content as it was in the feed: HTML is not sanitized.
    pub content: Option<String>,
}

impl StoredArticle {
    pub(crate) fn read(row: &Row) -> StoredArticle {
        StoredArticle {
            id: row.get("id"),
            source_id: row.get("source_id"),
            source: row.get("source"),
            found_at: row.get("found_at"),
            published_at: row.get("published_at"),
            updated_at: row.get("updated_at"),
            url: row.get("url"),
            title: row.get("title"),
            author: row.get("author"),
            content: row.get("content"),
        }
    }
}

/// Stores the articles that are new, and with a topic their events. Returns how many they are, by source. The caller has locked
/// the sources, so the events of each are in the order of the commits.
pub(crate) async fn add(
    transaction: &Transaction<'_>,
    articles: &[(i64, &Article)],
    topic: Option<&Topic>,
) -> Result<HashMap<i64, i64>, Error> {
    if articles.is_empty() {
        return Ok(HashMap::new());
    }
    let mut columns = Columns::default();
    articles.iter().for_each(|(source, article)| columns.push(*source, article));
    let statement = transaction.prepare_cached(include_str!("../../sql/add_articles.sql")).await?;
    let rows = transaction
        .query(
            &statement,
            &[
                &columns.sources,
                &columns.identities,
                &columns.others,
                &columns.urls,
                &columns.titles,
                &columns.authors,
                &columns.contents,
                &columns.published,
                &columns.updated,
            ],
        )
        .await?;
    if let Some(topic) = topic {
        engine::add_events(transaction, events(&rows, articles, topic)).await?;
    }
    let mut new = HashMap::new();
    rows.iter().for_each(|row| *new.entry(row.get("source_id")).or_default() += 1);
    Ok(new)
}

/// The events of the rows that were stored.
fn events(rows: &[Row], articles: &[(i64, &Article)], topic: &Topic) -> Vec<NewEvent> {
    let given: HashMap<(i64, &[u8]), &Article> =
        articles.iter().map(|(source, article)| ((*source, &*article.identity.hash), *article)).collect();
    let event = |row: &Row| {
        let source = row.get("source_id");
        let article = given.get(&(source, row.get("identity")))?;
        Some(topic.new_article(row.get("id"), source, article, article.published_at.filter(in_range)))
    };
    rows.iter().filter_map(event).collect()
}

#[derive(Default)]
struct Columns<'a> {
    sources: Vec<i64>,
    identities: Vec<&'a [u8]>,
    others: Vec<Option<&'a [u8]>>,
    urls: Vec<Option<&'a str>>,
    titles: Vec<Option<&'a str>>,
    authors: Vec<Option<&'a str>>,
    contents: Vec<Option<&'a str>>,
    published: Vec<Option<SystemTime>>,
    updated: Vec<Option<SystemTime>>,
}

impl<'a> Columns<'a> {
    fn push(&mut self, source: i64, article: &'a Article) {
        self.sources.push(source);
        self.identities.push(&article.identity.hash);
        self.others.push(article.identity.other.as_deref());
        self.urls.push(article.url.as_deref());
        self.titles.push(article.title.as_deref());
        self.authors.push(article.author.as_deref());
        self.contents.push(article.content.as_deref());
        self.published.push(article.published_at.filter(in_range));
        self.updated.push(article.updated_at.filter(in_range));
    }
}

/// Times that Postgres can store and that can be true.
fn in_range(time: &SystemTime) -> bool {
    let year_2200 = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(230 * 366 * 24 * 3600);
    let year_1900 = SystemTime::UNIX_EPOCH - std::time::Duration::from_secs(70 * 366 * 24 * 3600);
    (year_1900..year_2200).contains(time)
}
