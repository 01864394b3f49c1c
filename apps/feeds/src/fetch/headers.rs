//! What the headers of a response say: validators, caching, links, and when to come back.

use std::time::{Duration, SystemTime};

use hyper::StatusCode;
use hyper::header::{
    CACHE_CONTROL, ETAG, HeaderMap, HeaderName, HeaderValue, LAST_MODIFIED, LINK, RETRY_AFTER,
};
use url::Url;

/// What a server gave to ask for changes only. Opaque: sent back exactly as received.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Validators {
    /// The `ETag`.
    pub etag: Option<String>,
    /// The `Last-Modified`.
    pub last_modified: Option<String>,
}

impl Validators {
    pub(crate) fn of(headers: &HeaderMap) -> Validators {
        Validators { etag: text(headers, &ETAG), last_modified: text(headers, &LAST_MODIFIED) }
    }

    /// What holds after the answer 304: it may name new validators, and keeps those that it does not name.
    pub fn updated_by(self, newer: Validators) -> Validators {
        Validators {
            etag: newer.etag.or(self.etag),
            last_modified: newer.last_modified.or(self.last_modified),
        }
    }
}

/// The largest header value that is kept. Longer ones are not sent back.
const VALUE_BYTES_MAX: usize = 1024;

pub(crate) fn text(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    let value = headers.get(name)?;
    let text = std::str::from_utf8(value.as_bytes()).ok()?;
    (!text.is_empty() && text.len() <= VALUE_BYTES_MAX).then(|| text.to_owned())
}

/// A header value from what was received before.
pub(crate) fn value(text: &str) -> Option<HeaderValue> {
    HeaderValue::from_bytes(text.as_bytes()).ok()
}

/// How long the response is fresh: `max-age` of `Cache-Control`.
pub(crate) fn max_age(headers: &HeaderMap) -> Option<Duration> {
    let directives = headers.get_all(CACHE_CONTROL).iter().filter_map(|value| value.to_str().ok());
    let mut ages = directives.flat_map(|value| value.split(',')).filter_map(|directive| {
        let (name, age) = directive.trim().split_once('=')?;
        let age = age.trim_matches('"').parse().ok()?;
        name.eq_ignore_ascii_case("max-age").then(|| Duration::from_secs(age))
    });
    ages.next()
}

/// How long to stay away: `Retry-After` in seconds, or until a date, of an answer that says that it will pass (RFC 9110, section
/// 10.2.3; RFC 6585, section 4). Some servers send it with every answer, where it means nothing. With a redirect it is about the
/// next hop, which is not waited for.
pub(crate) fn retry_after(status: StatusCode, headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let passes =
        [StatusCode::PAYLOAD_TOO_LARGE, StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE];
    if !passes.contains(&status) {
        return None;
    }
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let until = httpdate::parse_http_date(text).ok()?;
    Some(until.duration_since(now).unwrap_or_default())
}

/// A link of a `Link` header (RFC 8288) with one of its relations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// The relation, in lower case.
    pub rel: String,
    /// The target, absolute.
    pub url: Url,
}

/// Links of all `Link` headers. Targets are relative to `base`.
pub(crate) fn links(headers: &HeaderMap, base: &Url) -> Vec<Link> {
    let values = headers.get_all(LINK).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| links_of(value, base)).collect()
}

fn links_of(mut rest: &str, base: &Url) -> Vec<Link> {
    let mut links = Vec::new();
    while let Some((target, after)) = rest.split_once('<').and_then(|(_, open)| open.split_once('>')) {
        let end = end_of_link(after);
        let params = &after[..end];
        rest = &after[end..];
        let rels = params.split(';').filter_map(|param| {
            let (name, value) = param.split_once('=')?;
            name.trim().eq_ignore_ascii_case("rel").then(|| value.trim().trim_matches('"'))
        });
        let Ok(url) = base.join(target.trim()) else { continue };
        for rel in rels.flat_map(str::split_whitespace) {
            links.push(Link { rel: rel.to_ascii_lowercase(), url: url.clone() });
        }
    }
    links
}

/// The comma that ends a link, outside of quotes.
fn end_of_link(text: &str) -> usize {
    let mut quoted = false;
    let end = text.char_indices().find(|(_, c)| {
        quoted ^= *c == '"';
        *c == ',' && !quoted
    });
    end.map_or(text.len(), |(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_str(value).expect("a value"))])
    }

    #[test]
    fn validators_are_opaque() {
        for etag in ["W/\"a b\"", "unquoted", "\"gz-1;br\"", "\"ü\""] {
            let map = HeaderMap::from_iter([(ETAG, value(etag).expect("a value"))]);
            assert_eq!(Validators::of(&map).etag.as_deref(), Some(etag));
        }
        let kept = Validators { etag: Some("a".into()), last_modified: Some("b".into()) };
        let newer = Validators { etag: Some("c".into()), last_modified: None };
        let expected = Validators { etag: Some("c".into()), last_modified: Some("b".into()) };
        assert_eq!(kept.updated_by(newer), expected);
    }

    #[test]
    fn max_age_is_found_among_other_directives() {
        let age = |text| max_age(&headers(CACHE_CONTROL, text)).map(|age| age.as_secs());
        assert_eq!(age("public, max-age=600"), Some(600));
        assert_eq!(age("MAX-AGE=\"5\""), Some(5));
        assert_eq!(age("no-cache"), None);
        assert_eq!(age("max-age=-1"), None);
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        let answered = |status, text| retry_after(status, &headers(RETRY_AFTER, text), now);
        let after = |text| answered(StatusCode::SERVICE_UNAVAILABLE, text).map(|span| span.as_secs());
        assert_eq!(after("120"), Some(120));
        assert_eq!(after("Sun, 06 Nov 1994 08:50:37 GMT"), Some(60));
        assert_eq!(after("Tue, 06 Nov 1990 08:50:37 GMT"), Some(0));
        assert_eq!(after("soon"), None);
        assert_eq!(answered(StatusCode::TOO_MANY_REQUESTS, "1"), Some(Duration::from_secs(1)));
        for other in [StatusCode::OK, StatusCode::NOT_MODIFIED, StatusCode::NOT_FOUND] {
            assert_eq!(answered(other, "120"), None, "{other}");
        }
    }

    #[test]
    fn links_have_relations() {
        let base: Url = "https://a.example/feed".parse().expect("a URL");
        let header = r#"</hub>; rel="hub", <https://b.example/a,b>; title="x, y"; rel="self alternate""#;
        let found: Vec<String> = links(&headers(LINK, header), &base)
            .into_iter()
            .map(|link| format!("{} {}", link.rel, link.url))
            .collect();
        let expected =
            ["hub https://a.example/hub", "self https://b.example/a,b", "alternate https://b.example/a,b"];
        assert_eq!(found, expected);
    }
}
