//! An article, and articles of one document that are told apart.

use std::collections::{HashMap, HashSet};
use std::time::SystemTime;

use crate::parse::identity::{Identity, of_shared_guid};

/// An article.
#[derive(Debug, Clone, PartialEq)]
pub struct Article {
    /// What makes it the same article in another document.
    pub identity: Identity,
    /// Its guid, if it has one.
    pub guid: Option<String>,
    /// Its page.
    pub url: Option<String>,
    /// Its title.
    pub title: Option<String>,
    /// Its authors.
    pub author: Option<String>,
    /// Its content, or else its summary, as it is in the feed: HTML is not sanitized.
    pub content: Option<String>,
    /// When it was published.
    pub published_at: Option<SystemTime>,
    /// When it was changed.
    pub updated_at: Option<SystemTime>,
}

/// Tells articles of one document apart that have the same guid, and leaves out those that are the same in every respect.
pub(super) fn tell_apart(articles: &mut Vec<Article>) {
    let mut counts: HashMap<Vec<u8>, usize> = HashMap::new();
    articles.iter().for_each(|one| *counts.entry(one.identity.hash.clone()).or_default() += 1);
    for article in articles.iter_mut().filter(|one| counts.get(&one.identity.hash) > Some(&1)) {
        let Some(guid) = &article.guid else { continue };
        let plain = std::mem::take(&mut article.identity.hash);
        let (url, title, content) =
            (article.url.as_deref(), article.title.as_deref(), article.content.as_deref());
        article.identity = of_shared_guid(guid, url, title, content, plain);
    }
    let mut seen = HashSet::new();
    articles.retain(|article| seen.insert(article.identity.hash.clone()));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn article(guid: Option<&str>, url: Option<&str>, title: &str) -> Article {
        Article {
            identity: Identity::new(guid, url, Some(title), None),
            guid: guid.map(str::to_owned),
            url: url.map(str::to_owned),
            title: Some(title.to_owned()),
            author: None,
            content: None,
            published_at: None,
            updated_at: None,
        }
    }

    fn hash_of(guid: Option<&str>, url: Option<&str>, title: &str) -> Vec<u8> {
        article(guid, url, title).identity.hash
    }

    #[test]
    fn the_guid_decides_then_the_link_then_the_content() {
        assert_eq!(hash_of(Some("1"), Some("http://a/1"), "x"), hash_of(Some("1"), Some("http://a/2"), "y"));
        assert_eq!(hash_of(None, Some("http://a/1"), "x"), hash_of(None, Some("http://a/1"), "y"));
        assert_ne!(hash_of(None, Some("http://a/1"), "x"), hash_of(None, Some("http://a/2"), "x"));
        assert_eq!(hash_of(None, None, "x"), hash_of(None, None, "x"));
        assert_ne!(hash_of(None, None, "x"), hash_of(None, None, "y"));
        assert_ne!(hash_of(Some("a"), None, "x"), hash_of(None, Some("a"), "x"), "a guid is not a link");
    }

    #[test]
    fn a_move_to_https_changes_no_identity() {
        assert_eq!(hash_of(None, Some("http://a/1"), "x"), hash_of(None, Some("https://a/1"), "x"));
        assert_eq!(hash_of(Some("http://a/1"), None, "x"), hash_of(Some("HTTPS://a/1"), None, "x"));
        assert_ne!(hash_of(Some("ftp://a/1"), None, "x"), hash_of(Some("http://a/1"), None, "x"));
    }

    #[test]
    fn a_guid_that_two_articles_have_identifies_neither() {
        let mut both = vec![
            article(Some("1"), Some("http://a/1"), "one"),
            article(Some("1"), Some("http://a/2"), "two"),
            article(Some("1"), Some("https://a/2"), "two again"),
            article(Some("2"), Some("http://a/3"), "three"),
        ];
        tell_apart(&mut both);
        let titles: Vec<_> = both.iter().filter_map(|one| one.title.as_deref()).collect();
        assert_eq!(titles, ["one", "two", "three"]);
        // In a later document the guid stands alone: the same link shows that it is the same article.
        let alone = article(Some("1"), Some("http://a/1"), "one");
        assert_eq!(alone.identity.other.as_ref(), Some(&both[0].identity.hash));
        assert_eq!(both[0].identity.other.as_ref(), Some(&alone.identity.hash));
    }
}
