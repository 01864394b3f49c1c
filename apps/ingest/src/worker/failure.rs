//! Why data was not loaded, and whether it is tried again.

use pitwheel::DatabaseError;

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
            Error::Engine(pitwheel::Error::Database(ref refusal)) if is_of_the_data(refusal) => {
                Failure::bad(error.to_string())
            }
            _ => Failure::Again(error),
        }
    }
}

/// Whether the data is the cause: a value that Postgres does not accept, or that breaks a constraint. Everything else may pass: a schema that a
/// migration has changed under an old process, rights, a disk.
fn is_of_the_data(error: &DatabaseError) -> bool {
    match error {
        DatabaseError::Refused { code, .. } => code.starts_with("22") || code.starts_with("23"),
        DatabaseError::Unreachable(_) => false,
    }
}

impl From<CsvError> for Failure {
    fn from(error: CsvError) -> Failure {
        Failure::from(Error::from(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_final(code: &str) -> bool {
        let refused = DatabaseError::Refused { message: "no".to_owned(), code: code.to_owned() };
        matches!(Failure::from(Error::Engine(pitwheel::Error::Database(refused))), Failure::Bad { .. })
    }

    #[test]
    fn only_what_the_data_causes_is_final() {
        for code in ["22003", "22P04", "23502", "23514"] {
            assert!(is_final(code), "{code}");
        }
        for code in ["42703", "42501", "0A000", "25P03", "53100", "58030", "XX000"] {
            assert!(!is_final(code), "{code}");
        }
    }
}
