//! A document and its articles.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, SystemTime};

use feed_rs::model::{self, Entry, Feed, FeedType};
use feed_rs::parser::Builder;
use serde::Deserialize;
use url::Url;

use crate::parse::article::{Article, tell_apart};
use crate::parse::error::ParseError;
use crate::parse::identity::Identity;
use crate::parse::text;

/// More articles than this of one document are not stored. The first are the newest in practice.
const ARTICLES_MAX: usize = 1000;
/// Longer titles are cut.
const TITLE_CHARS_MAX: usize = 1000;
/// Longer contents are cut.
const CONTENT_BYTES_MAX: usize = 256 * 1024;
/// Links and guids that are longer are not kept.
const URL_BYTES_MAX: usize = 4096;

/// A document.
#[derive(Debug, Clone, Default)]
pub struct Document {
    /// The title of the feed.
    pub title: Option<String>,
    /// The page that the feed belongs to.
    pub site_url: Option<String>,
    /// When the feed changed, by its own account.
    pub updated_at: Option<SystemTime>,
    /// When the feed was published, by its own account.
    pub published_at: Option<SystemTime>,
    /// How long to wait before the next fetch.
    pub ttl: Option<Duration>,
    /// The WebSub hubs.
    pub hubs: Vec<String>,
    /// The URL of the feed, by its own account.
    pub self_url: Option<String>,
    /// The articles, in the order of the document.
    pub articles: Vec<Article>,
}

/// Parses a document that was fetched from `url`.
///
/// # Errors
/// If it is not a feed.
pub fn parse(body: &[u8], content_type: Option<&str>, url: &Url) -> Result<Document, ParseError> {
    let text = text::prepare(body, content_type)?;
    let parser = Builder::new()
        .base_uri(Some(url.as_str()))
        .sanitize_content(false)
        // Without a guid the id stays empty, and the identity is found by other means.
        .id_generator(|_, _, _| String::new())
        .build();
    // The parser slices text by position, and some documents make it panic. That is a refusal, not the end of the fetch.
    let parsed = catch_unwind(AssertUnwindSafe(|| parser.parse(text.as_bytes())));
    let parsed = parsed.map_err(|_| ParseError::NotAFeed("the parser gave up".into()))?;
    let feed = parsed.map_err(|error| match is_web_page(&text) {
        true => ParseError::WebPage,
        false => ParseError::NotAFeed(error.to_string()),
    })?;
    let is_json = feed.feed_type == FeedType::JSON;
    let mut document = document(feed);
    if is_json {
        document.hubs = json_hubs(&text);
    }
    Ok(document)
}

/// The WebSub hubs of a JSON Feed, which the parser does not read.
fn json_hubs(text: &str) -> Vec<String> {
    #[derive(Deserialize)]
    struct Hubs {
        #[serde(default)]
        hubs: Vec<Hub>,
    }
    #[derive(Deserialize)]
    struct Hub {
        #[serde(rename = "type")]
        kind: String,
        url: String,
    }
    let found = serde_json::from_str::<Hubs>(text).map(|found| found.hubs).unwrap_or_default();
    found.into_iter().filter(|hub| hub.kind.eq_ignore_ascii_case("websub")).map(|hub| hub.url).collect()
}

fn is_web_page(text: &str) -> bool {
    let start: String = text.trim_start().chars().take(200).collect::<String>().to_ascii_lowercase();
    start.starts_with("<html") || start.starts_with("<!doctype html") || start.starts_with("<head")
}

fn document(feed: Feed) -> Document {
    let links = |rel: &'static str| {
        feed.links.iter().filter(move |link| link.rel.as_deref() == Some(rel)).map(|link| link.href.clone())
    };
    let mut articles: Vec<Article> = Vec::new();
    let is_json = feed.feed_type == FeedType::JSON;
    let hubs = links("hub").collect();
    // JSON Feed names the page first and the feed second, without relations.
    let self_url = links("self").next().or_else(|| {
        let second = feed.links.get(1).filter(|_| is_json);
        second.map(|link| link.href.clone())
    });
    let site_url = page(&feed.links);
    let entries = feed.entries.into_iter().take(ARTICLES_MAX);
    articles.extend(entries.map(article));
    tell_apart(&mut articles);
    Document {
        title: feed.title.and_then(|title| short(&title.content)),
        site_url,
        updated_at: feed.updated.map(SystemTime::from),
        published_at: feed.published.map(SystemTime::from),
        ttl: feed.ttl.map(|minutes| Duration::from_secs(u64::from(minutes) * 60)),
        hubs,
        self_url,
        articles,
    }
}

fn article(entry: Entry) -> Article {
    let url = page(&entry.links);
    let guid = Some(entry.id).filter(|guid| !guid.trim().is_empty() && guid.len() <= URL_BYTES_MAX);
    let title = entry.title.and_then(|title| short(&title.content));
    let body = entry.content.and_then(|content| content.body);
    let content = body.or(entry.summary.map(|summary| summary.content)).map(cut);
    let authors: Vec<String> = entry.authors.into_iter().filter_map(name).collect();
    Article {
        identity: Identity::new(guid.as_deref(), url.as_deref(), title.as_deref(), content.as_deref()),
        guid,
        url,
        title,
        author: short(&authors.join(", ")),
        content,
        published_at: entry.published.map(SystemTime::from),
        updated_at: entry.updated.map(SystemTime::from),
    }
}

fn name(person: model::Person) -> Option<String> {
    person.name.or(person.email).map(|name| name.trim().to_owned()).filter(|name| !name.is_empty())
}

/// The link to the page: the one without a relation, or the alternate.
fn page(links: &[model::Link]) -> Option<String> {
    let rank = |link: &&model::Link| match link.rel.as_deref() {
        None | Some("alternate") => Some(0),
        Some("self" | "hub" | "enclosure" | "edit" | "replies" | "next" | "via" | "related") => None,
        Some(_) => Some(1),
    };
    let ranked = links.iter().filter_map(|link| Some((rank(&link)?, link)));
    let (_, link) = ranked.filter(|(_, link)| link.target.is_none()).min_by_key(|(rank, _)| *rank)?;
    let href = link.href.trim();
    (!href.is_empty() && href.len() <= URL_BYTES_MAX).then(|| href.to_owned())
}

fn short(text: &str) -> Option<String> {
    let text: String = text.trim().chars().take(TITLE_CHARS_MAX).collect();
    (!text.is_empty()).then_some(text)
}

/// At most so many bytes, at the end of a character.
fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(CONTENT_BYTES_MAX));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_websub_hubs_of_a_json_feed_are_read() {
        let feed = r#"{"version":"https://jsonfeed.org/version/1.1","title":"t","items":[],
            "hubs":[{"type":"rssCloud","url":"https://a.example"},{"type":"WebSub","url":"https://hub.example"}]}"#;
        let url = "https://example.com/feed.json".parse().expect("a URL");
        assert_eq!(parse(feed.as_bytes(), None, &url).expect("a feed").hubs, ["https://hub.example"]);
    }
}
