//! What a response means for its source. Pure, but for the parsing of the document.

use std::time::Duration;

use hyper::StatusCode;

use crate::fetch::{FetchError, Fetched, Validators};
use crate::parse::{self, Document};
use crate::schedule::{self, Asked};
use crate::store::fetches::{Hub, Outcome, ToFetch};

/// What becomes of a source after a fetch. `random` is between 0 and 1.
pub(crate) fn decide(
    source_id: i64,
    source: &ToFetch,
    fetched: Result<Fetched, FetchError>,
    took: Duration,
    random: f64,
) -> Outcome {
    let mut asked = Asked { interval: source.interval, pushed: source.is_pushed, ..Asked::default() };
    let response = match fetched {
        Ok(response) => response,
        Err(error) => return failure(source_id, source, &asked, error.to_string(), took, random),
    };
    (asked.max_age, asked.retry_after) = (response.max_age, response.retry_after);
    let status = response.status;
    let unchanged = status == StatusCode::NOT_MODIFIED;
    let problem = match status {
        _ if status.is_success() || unchanged => None,
        StatusCode::GONE => Some("the server says that the feed is gone for good (410)".to_owned()),
        _ => Some(format!("the server answered {status}")),
    };
    let parsed = match problem {
        Some(problem) => Err(problem),
        None if unchanged => Ok(None),
        None => {
            let parsed = parse::parse(&response.body, response.content_type.as_deref(), &response.url);
            parsed.map(Some).map_err(|error| error.to_string())
        }
    };
    let mut outcome = match parsed {
        Err(problem) => Outcome {
            gone: status == StatusCode::GONE,
            ..failure(source_id, source, &asked, problem, took, random)
        },
        Ok(document) => {
            asked.ttl = document.as_ref().and_then(|document| document.ttl);
            success(source_id, source, &asked, &response, document, took, random)
        }
    };
    outcome.status = Some(status.as_u16());
    outcome.bytes = response.received;
    outcome
}

fn success(
    source_id: i64,
    source: &ToFetch,
    asked: &Asked,
    response: &Fetched,
    document: Option<Document>,
    took: Duration,
    random: f64,
) -> Outcome {
    let validators = match document {
        None => source.validators.clone().updated_by(response.validators.clone()),
        Some(_) => response.validators.clone(),
    };
    let hub = document.as_ref().map_or_else(|| source.hub.clone(), |document| hub(response, document));
    Outcome {
        source_id,
        status: None,
        bytes: 0,
        took,
        articles: document.map(|document| document.articles).unwrap_or_default(),
        validators,
        adopts: response.moved_to.as_ref().is_some_and(|url| source.adopts(url)),
        moved_to: response.moved_to.clone(),
        subscribes: hub.hub_url.is_some() && hub != source.hub,
        hub,
        next: schedule::after_success(asked, random),
        error: None,
        gone: false,
    }
}

/// The hub of a source and its topic: from `Link` headers, else from the document.
fn hub(response: &Fetched, document: &Document) -> Hub {
    let linked =
        |rel: &str| response.links.iter().find(|link| link.rel == rel).map(|link| link.url.to_string());
    let hub_url = linked("hub").or_else(|| document.hubs.first().cloned());
    let topic = linked("self").or_else(|| document.self_url.clone());
    let topic_url = hub_url.as_ref().map(|_| topic.unwrap_or_else(|| response.url.to_string()));
    Hub { hub_url, topic_url }
}

/// A failed fetch is a fact that is written down, with a time for the next one: it neither comes back at once nor blocks others.
fn failure(
    source_id: i64,
    source: &ToFetch,
    asked: &Asked,
    error: String,
    took: Duration,
    random: f64,
) -> Outcome {
    let next = schedule::after_failure(asked, source.consecutive_failures.saturating_add(1), random);
    Outcome {
        source_id,
        status: None,
        bytes: 0,
        took,
        articles: Vec::new(),
        // The next fetch gets the whole document, whatever was wrong with this one.
        validators: Validators::default(),
        moved_to: None,
        adopts: false,
        hub: source.hub.clone(),
        subscribes: false,
        next,
        error: Some(error),
        gone: false,
    }
}
