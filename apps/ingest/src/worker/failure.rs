//! Why data was not loaded, and whether it is tried again.

use crate::csv::CsvError;
use crate::error::Error;

/// Why data was not loaded.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The data is wrong, and stays wrong.
    Bad {
        reason: String,
        /// Rows that were rejected.
        rejected: u64,
    },
    /// Something else failed: another attempt may succeed.
    Again(Error),
}

impl Failure {
    pub(crate) fn bad(reason: impl Into<String>) -> Failure {
        Failure::Bad { reason: reason.into(), rejected: 0 }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match error {
            Error::Csv(CsvError::Io(_)) => Failure::Again(error),
            Error::Csv(_) | Error::Invalid(_) => Failure::bad(error.to_string()),
            // What Postgres refuses for good, it refuses the next time too.
            Error::Engine(pitwheel::Error::Database(_)) if !error.is_transient() => {
                Failure::bad(error.to_string())
            }
            _ => Failure::Again(error),
        }
    }
}

impl From<CsvError> for Failure {
    fn from(error: CsvError) -> Failure {
        Failure::from(Error::from(error))
    }
}
