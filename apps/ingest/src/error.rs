//! What a caller acts on.

use deadpool_postgres::PoolError;

use crate::csv::CsvError;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The engine or the database failed.
    #[error(transparent)]
    Engine(#[from] pitwheel::Error),
    /// A value cannot be used.
    #[error("{0}")]
    Invalid(String),
    /// There is no such thing.
    #[error("there is no {0}")]
    NotFound(String),
    /// A file cannot be loaded, and never will be.
    #[error(transparent)]
    Csv(#[from] CsvError),
    /// A file or a source cannot be read now.
    #[error("{0}")]
    Unreadable(String),
    /// Too much is under way.
    #[error("{0}")]
    Busy(String),
}

impl Error {
    /// Whether the same call may succeed later, because the database was not reachable or busy.
    pub fn is_transient(&self) -> bool {
        matches!(self, Error::Engine(error) if error.is_transient())
    }
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
