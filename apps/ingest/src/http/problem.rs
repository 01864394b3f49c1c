//! Errors of the ingestion as the API shows them.

use pitwheel::DatabaseError;
use pitwheel_server::Problem;

use crate::error::Error;

/// The problem that a caller gets for an error.
pub(crate) fn problem(error: Error) -> Problem {
    match error {
        Error::Engine(error) => Problem::from(error),
        Error::NotFound(_) => Problem::not_found(error.to_string()),
        Error::Invalid(_) | Error::Csv(_) => Problem::invalid(error.to_string()),
        Error::Busy(_) => Problem::busy(error.to_string()),
        Error::Unreadable(_) => {
            Problem::from(pitwheel::Error::Database(DatabaseError::Unreachable(error.to_string())))
        }
    }
}
