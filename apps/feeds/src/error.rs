//! What a caller acts on.

use deadpool_postgres::PoolError;

use crate::fetch::FetchError;
use crate::opml::OpmlError;
use crate::parse::ParseError;
use crate::tls::TlsError;

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
    /// The schema is of a newer version.
    #[error("the schema `feeds` has version {found}, this program knows {known}: use a newer program")]
    SchemaAhead {
        /// The version in the database.
        found: i32,
        /// The newest version this program knows.
        known: i32,
    },
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
