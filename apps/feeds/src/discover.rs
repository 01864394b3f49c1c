//! Finds the feeds of a web page.

use url::Url;

use crate::fetch::{Client, FetchError, Validators};
use crate::parse;

/// Where feeds are when a page names none.
const USUAL_PATHS: [&str; 6] = ["/feed", "/feed.xml", "/rss.xml", "/atom.xml", "/index.xml", "/feed.json"];
/// How many feeds of one page are looked for.
const FEEDS_MAX: usize = 20;
/// How many links of one page are read.
const LINKS_MAX: usize = 1000;

/// A feed that was found.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
pub struct Discovered {
    /// Its URL.
    pub url: String,
    /// Its title, if the page or the feed has one.
    pub title: Option<String>,
}

/// Finds the feeds of a URL: itself, if it is one; else those that the page names; else those at the usual places.
///
/// # Errors
/// If the URL cannot be fetched.
pub async fn discover(client: &Client, url: &Url) -> Result<Vec<Discovered>, FetchError> {
    let page = client.get(url, &Validators::default()).await?;
    let kind = page.content_type.as_deref();
    if let Ok(document) = parse::parse(&page.body, kind, &page.url) {
        return Ok(vec![Discovered { url: page.url.to_string(), title: document.title }]);
    }
    let named = links(&String::from_utf8_lossy(&page.body), &page.url);
    if !named.is_empty() {
        return Ok(named);
    }
    let mut found = Vec::new();
    for path in USUAL_PATHS {
        let Ok(guess) = page.url.join(path) else { continue };
        let Ok(fetched) = client.get(&guess, &Validators::default()).await else { continue };
        if let Ok(document) = parse::parse(&fetched.body, fetched.content_type.as_deref(), &fetched.url) {
            found.push(Discovered { url: fetched.url.to_string(), title: document.title });
        }
    }
    found.dedup_by(|one, other| one.url == other.url);
    Ok(found)
}

/// The feeds that a page names: `<link rel="alternate" type="application/rss+xml" href="…">`.
pub fn links(html: &str, base: &Url) -> Vec<Discovered> {
    let mut found: Vec<Discovered> = Vec::new();
    for tag in tags(html, "link").take(LINKS_MAX) {
        let rel = attribute(tag, "rel").unwrap_or_default().to_ascii_lowercase();
        let kind = attribute(tag, "type").unwrap_or_default().to_ascii_lowercase();
        let is_feed = ["application/rss+xml", "application/atom+xml", "application/feed+json"]
            .iter()
            .any(|feed| kind.starts_with(feed));
        if !is_feed || !rel.split_whitespace().any(|rel| rel == "alternate" || rel == "feed") {
            continue;
        }
        let Some(url) = attribute(tag, "href").and_then(|href| base.join(href.trim()).ok()) else { continue };
        let url = url.to_string();
        if found.len() < FEEDS_MAX && found.iter().all(|known| known.url != url) {
            found.push(Discovered { url, title: attribute(tag, "title").filter(|title| !title.is_empty()) });
        }
    }
    found
}

/// The attributes of each tag of this name. Pages are rarely well-formed, so nothing else of them is read.
fn tags<'a>(html: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    html.split('<').skip(1).filter_map(move |tag| {
        let (start, rest) = (tag.get(..name.len())?, tag.get(name.len()..)?);
        let is_tag = start.eq_ignore_ascii_case(name) && rest.starts_with([' ', '\t', '\r', '\n', '/']);
        is_tag.then(|| rest.split_once('>').map_or(rest, |(attributes, _)| attributes))
    })
}

/// An attribute, with its character references resolved.
fn attribute(tag: &str, name: &str) -> Option<String> {
    let lower = tag.to_ascii_lowercase();
    let mut from = 0;
    while let Some(at) = lower[from..].find(name).map(|at| from + at) {
        from = at + name.len();
        let before = lower[..at].chars().next_back();
        let value = tag[from..].trim_start().strip_prefix('=').map(str::trim_start);
        let (true, Some(value)) = (before.is_some_and(char::is_whitespace), value) else { continue };
        let raw = match value.chars().next() {
            Some(quote @ ('"' | '\'')) => value[1..].split(quote).next()?,
            _ => value.split(|c: char| c.is_whitespace() || c == '>').next()?,
        };
        return Some(quick_xml::escape::unescape(raw).map_or_else(|_| raw.to_owned(), Into::into));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_feeds_of_a_page_are_found() {
        let base: Url = "https://a.example/blog/".parse().expect("a URL");
        let html = r#"<html><HEAD><link rel=stylesheet href=x.css>
            <LINK REL="alternate" TYPE="application/rss+xml" TITLE="News &amp; more" HREF="feed.xml">
            <link rel='alternate' type='application/atom+xml; charset=utf-8' href='/atom?a=1&amp;b=2' />
            <link rel="alternate" type="application/rss+xml" href="feed.xml">
            <link rel="alternate" hreflang="de" type="text/html" href="/de">
            <linkage rel="alternate" type="application/rss+xml" href="no">"#;
        let found: Vec<(String, Option<String>)> =
            links(html, &base).into_iter().map(|one| (one.url, one.title)).collect();
        let expected = [
            ("https://a.example/blog/feed.xml".to_owned(), Some("News & more".to_owned())),
            ("https://a.example/atom?a=1&b=2".to_owned(), None),
        ];
        assert_eq!(found, expected);
    }
}
