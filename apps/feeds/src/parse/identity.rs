//! What makes an article the same in two documents: its guid, else its link, else its content.

use ring::digest::{SHA256, digest};

/// The identity of an article within its source: a hash.
///
/// The scheme of a URL is no part of it: a site that moves from http to https does not repeat its articles.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The hash.
    pub hash: Vec<u8>,
    /// The hash under which the same article may be stored, if its link is the same too: a guid that several articles of one
    /// document have identifies none of them, and in another document it may stand alone.
    pub other: Option<Vec<u8>>,
}

impl Identity {
    /// Of an article whose guid stands alone in its document.
    pub(crate) fn new(
        guid: Option<&str>,
        url: Option<&str>,
        title: Option<&str>,
        content: Option<&str>,
    ) -> Identity {
        match (guid, url) {
            (Some(guid), url) => Identity {
                hash: hash("guid", &[without_scheme(guid)]),
                other: url.map(|url| hash("guid and link", &[without_scheme(guid), without_scheme(url)])),
            },
            (None, Some(url)) => Identity { hash: hash("link", &[without_scheme(url)]), other: None },
            (None, None) => Identity { hash: content_identity(title, content), other: None },
        }
    }
}

/// The identity of an article whose guid other articles of its document have too.
pub(super) fn of_shared_guid(
    guid: &str,
    url: Option<&str>,
    title: Option<&str>,
    content: Option<&str>,
    plain: Vec<u8>,
) -> Identity {
    match url {
        Some(url) => Identity {
            hash: hash("guid and link", &[without_scheme(guid), without_scheme(url)]),
            other: Some(plain),
        },
        None => Identity {
            hash: hash("guid and content", &[guid, title.unwrap_or_default(), content.unwrap_or_default()]),
            other: None,
        },
    }
}

/// The identity of an article that has neither guid nor link.
fn content_identity(title: Option<&str>, content: Option<&str>) -> Vec<u8> {
    hash("content", &[title.unwrap_or_default(), content.unwrap_or_default()])
}

/// A URL, or a guid that is one, without `http:` or `https:`.
fn without_scheme(text: &str) -> &str {
    let text = text.trim();
    let scheme = text.split_once("://").map(|(scheme, rest)| (scheme.to_ascii_lowercase(), rest));
    match scheme {
        Some((scheme, rest)) if scheme == "http" || scheme == "https" => rest,
        _ => text,
    }
}

/// A hash of texts of one kind. Lengths are part of it, so that texts cannot run into each other.
fn hash(kind: &str, texts: &[&str]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for text in std::iter::once(&kind).chain(texts) {
        bytes.extend_from_slice(&(text.len() as u64).to_be_bytes());
        bytes.extend_from_slice(text.as_bytes());
    }
    digest(&SHA256, &bytes).as_ref()[..16].to_vec()
}
