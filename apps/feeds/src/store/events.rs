//! Events for the outbox: one for each new article, in the transaction that stores it.

use std::str::FromStr;
use std::time::SystemTime;

use pitwheel::NewEvent;
use pitwheel_server::views::time;
use serde::Serialize;

use crate::error::Error;
use crate::parse::Article;

/// The type of the events.
const NEW_ARTICLE: &str = "article.new";

/// The topic of the events of new articles: 1 to 249 letters, digits and `.` `_` `-`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topic(String);

impl FromStr for Topic {
    type Err = Error;

    fn from_str(name: &str) -> Result<Topic, Error> {
        NewEvent::tombstone(entity_key(0), name, NEW_ARTICLE).check()?;
        Ok(Topic(name.to_owned()))
    }
}

/// Without the content: the parser limits all texts here, so an event is never too large for the outbox.
#[derive(Serialize)]
struct Payload<'a> {
    id: i64,
    source_id: i64,
    guid: Option<&'a str>,
    url: Option<&'a str>,
    title: Option<&'a str>,
    published_at: Option<String>,
}

impl Topic {
    /// The event of an article that was stored under this id.
    pub(crate) fn new_article(
        &self,
        id: i64,
        source_id: i64,
        article: &Article,
        published_at: Option<SystemTime>,
    ) -> NewEvent {
        let payload = Payload {
            id,
            source_id,
            guid: article.guid.as_deref(),
            url: article.url.as_deref(),
            title: article.title.as_deref(),
            published_at: published_at.map(time),
        };
        NewEvent::json(entity_key(source_id), &self.0, NEW_ARTICLE, &payload)
    }
}

/// The events of one source are delivered in order.
fn entity_key(source_id: i64) -> String {
    format!("source-{source_id}")
}
