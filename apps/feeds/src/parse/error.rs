//! Why a document is refused.

/// Why a document is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// A possible attack on memory.
    #[error("the document declares XML entities, which feeds do not need: it is refused")]
    Entities,
    /// Not a feed.
    #[error("the document is not a feed: {0}")]
    NotAFeed(String),
    /// A web page.
    #[error(
        "the document is a web page, not a feed: `pitwheel-feeds sources add URL --discover` adds the feeds that it names"
    )]
    WebPage,
}
