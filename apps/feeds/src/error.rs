//! What a caller acts on.

use deadpool_postgres::PoolError;
use pitwheel_app::TlsError;

use crate::fetch::FetchError;
use crate::opml::OpmlError;
use crate::parse::ParseError;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A batch that this call was part of failed; the cause is in the log.
    #[error("the database failed: {0}")]
    Database(&'static str),
    /// The engine or the database failed.
    #[error(transparent)]
    Engine(#[from] pitwheel::Error),
    /// There is no such source.
    #[error("there is no source `{0}`: list them with `pitwheel-feeds sources list`")]
    NoSource(String),
    /// A value cannot be used.
    #[error("{0}")]
    Invalid(String),
    /// A URL cannot be fetched.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// A document is not a feed.
    #[error(transparent)]
    Parse(#[from] ParseError),
    /// A file is not OPML.
    #[error(transparent)]
    Opml(#[from] OpmlError),
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

impl From<tokio_postgres::Error> for Error {
    fn from(error: tokio_postgres::Error) -> Error {
        Error::Engine(error.into())
    }
}

impl From<PoolError> for Error {
    fn from(error: PoolError) -> Error {
        Error::Engine(error.into())
    }
}
