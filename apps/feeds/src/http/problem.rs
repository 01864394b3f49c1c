//! Errors of the feeds as the API shows them.

use pitwheel::DatabaseError;
use pitwheel_server::Problem;

use crate::error::Error;

/// The problem that a caller gets for an error.
pub(crate) fn problem(error: Error) -> Problem {
    match error {
        Error::Engine(error) => Problem::from(error),
        Error::NoSource(name) => Problem::not_found(format!("there is no source `{name}`")),
        Error::Invalid(_) | Error::Fetch(_) | Error::Parse(_) | Error::Opml(_) => {
            Problem::invalid(error.to_string())
        }
        Error::Database(_) | Error::Tls(_) => {
            Problem::from(pitwheel::Error::Database(DatabaseError::Unreachable(error.to_string())))
        }
    }
}
