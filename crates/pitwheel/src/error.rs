//! Errors, one variant for each case that a caller handles differently.

use crate::job::payload::PayloadError;

/// An error. [`Error::code`] is stable; `docs/errors.md` has a section on each.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The URL cannot be used. No connection was made.
    #[error("database URL is not usable: {0}")]
    Url(String),
    /// Postgres could not be reached, or a statement failed. Repeat the call if [`Error::is_transient`].
    #[error("{0}")]
    Database(#[source] DatabaseError),
    /// The schema is missing, or older than this version needs.
    #[error("the schema is at version {found}, this version needs {needed}: run `pitwheel migrate up`")]
    SchemaBehind {
        /// The version in the database; 0 when there is none.
        found: i32,
        /// The version this build needs.
        needed: i32,
    },
    /// A newer version has changed the schema in a way that this version cannot work with.
    #[error(
        "the schema is at version {found}, which this version (up to {known}) cannot work with: upgrade Pitwheel here"
    )]
    SchemaAhead {
        /// The version in the database.
        found: i32,
        /// The newest version this build knows.
        known: i32,
    },
    /// The payload, result or metadata cannot be stored. Nothing was written.
    #[error("{what} {problem}")]
    Payload {
        /// `payload`, `metadata` or `result`.
        what: &'static str,
        /// What is wrong with it.
        problem: PayloadError,
    },
    /// A name, number or key is out of range. Nothing was written.
    #[error("{0}")]
    Invalid(String),
    /// There is no such job: the id was never used, the job is finished, or its history was pruned.
    #[error("job {0} was not found: {1}")]
    NotFound(i64, &'static str),
    /// The job cannot be retried while another live job has its key.
    #[error("job {0} cannot be retried: a live job has its kind and key, cancel that one first")]
    KeyTaken(i64),
    /// The job cannot be recovered: it is not running, or its worker has renewed its lease.
    #[error("job {0} cannot be recovered: {1}")]
    NotStale(i64, String),
}

impl Error {
    /// A stable name for this error, the heading of its section in `docs/errors.md`.
    pub fn code(&self) -> &'static str {
        match self {
            Error::Url(_) => "bad_url",
            Error::Database(_) => "database",
            Error::SchemaBehind { .. } => "schema_behind",
            Error::SchemaAhead { .. } => "schema_ahead",
            Error::Payload { .. } => "bad_payload",
            Error::Invalid(_) => "invalid",
            Error::NotFound(..) => "not_found",
            Error::KeyTaken(_) => "key_taken",
            Error::NotStale(..) => "not_stale",
        }
    }

    /// Whether the same call may succeed later: the database was not reachable, full, or busy.
    pub fn is_transient(&self) -> bool {
        matches!(self, Error::Database(error) if error.is_transient())
    }
}

/// A failed statement or connection, with the server's message.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    /// The server answered with an error.
    #[error("Postgres refused: {message} ({code})")]
    Refused {
        /// The server's message.
        message: String,
        /// The SQLSTATE.
        code: String,
    },
    /// The connection could not be made, broke, or timed out.
    #[error("Postgres cannot be reached: {0}")]
    Unreachable(String),
}

/// The SQLSTATE of a statement that met a row or table that another transaction has locked for too long.
pub(crate) const LOCK_NOT_AVAILABLE: &str = "55P03";
/// The SQLSTATE of a write to a standby: after a failover the address may still lead to the old primary.
const READ_ONLY: &str = "25006";

impl DatabaseError {
    /// SQLSTATE classes of temporary errors: connection, transaction rollback, resources, locks, operator intervention.
    fn is_transient(&self) -> bool {
        match self {
            DatabaseError::Unreachable(_) => true,
            DatabaseError::Refused { code, .. } => {
                code == READ_ONLY
                    || ["08", "40", "53", "55", "57"].iter().any(|class| code.starts_with(class))
            }
        }
    }

    /// Whether Postgres refused the values of a statement: it may take others. Not if the schema, the rights or the state of the
    /// transaction is wrong, nor if the server itself has a problem (with a file, its configuration, or its own code): the values are not
    /// to blame.
    pub(crate) fn refuses_values(&self) -> bool {
        match self {
            DatabaseError::Unreachable(_) => false,
            DatabaseError::Refused { code, .. } => {
                let of_all = ["0A", "25", "42", "58", "F0", "XX"];
                !self.is_transient() && !of_all.iter().any(|class| code.starts_with(class))
            }
        }
    }

    /// Whether the server met a damaged row, page or file, or a fault of its own. It may concern one row of many, and pass.
    pub(crate) fn is_fault_of_server(&self) -> bool {
        matches!(self, DatabaseError::Refused { code, .. } if code.starts_with("58") || code.starts_with("XX"))
    }

    /// Whether the statement may pass without some of its rows: they are locked, cannot be read, or have values that Postgres refuses.
    pub(crate) fn concerns_rows(&self) -> bool {
        self.is_locked() || self.is_fault_of_server() || self.refuses_values()
    }

    /// Whether a row or a table was locked: the same statement may pass without it, or later.
    pub(crate) fn is_locked(&self) -> bool {
        self.refused_with(LOCK_NOT_AVAILABLE)
    }

    /// Whether Postgres refused with this code.
    pub(crate) fn refused_with(&self, sqlstate: &str) -> bool {
        matches!(self, DatabaseError::Refused { code, .. } if code == sqlstate)
    }
}

impl From<tokio_postgres::Error> for Error {
    fn from(error: tokio_postgres::Error) -> Error {
        Error::Database(match error.as_db_error() {
            Some(refusal) => DatabaseError::Refused {
                message: refusal.message().to_owned(),
                code: refusal.code().code().to_owned(),
            },
            None => DatabaseError::Unreachable(with_causes(&error)),
        })
    }
}

impl From<deadpool_postgres::PoolError> for Error {
    fn from(error: deadpool_postgres::PoolError) -> Error {
        use deadpool_postgres::{HookError, PoolError};
        match error {
            PoolError::Backend(error) | PoolError::PostCreateHook(HookError::Backend(error)) => error.into(),
            other => Error::Database(DatabaseError::Unreachable(other.to_string())),
        }
    }
}

#[cfg(feature = "sqlx")]
impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Error {
        Error::Database(match error.as_database_error() {
            Some(refusal) => DatabaseError::Refused {
                message: refusal.message().to_owned(),
                code: refusal.code().unwrap_or_default().into_owned(),
            },
            None => DatabaseError::Unreachable(with_causes(&error)),
        })
    }
}

/// An error and its causes in one line: drivers put the useful part into the cause.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failover_passes_and_a_mistake_does_not() {
        let refused = |code: &str| {
            Error::Database(DatabaseError::Refused { message: String::new(), code: code.to_owned() })
        };
        for passes in ["25006", "57P01", "53300", "40001", "55P03", "08006"] {
            assert!(refused(passes).is_transient(), "{passes}");
        }
        for stays in ["42P01", "22023", "25001", "23505"] {
            assert!(!refused(stays).is_transient(), "{stays}");
        }
        let refuses_values = |code: &str| match refused(code) {
            Error::Database(error) => error.refuses_values(),
            _ => false,
        };
        for values in ["22023", "22P02", "23514", "54000", "P0001"] {
            assert!(refuses_values(values), "{values}");
        }
        for all in ["42P01", "42501", "25P02", "40001", "53100", "58030", "XX000", "0A000", "F0001"] {
            assert!(!refuses_values(all), "{all}");
        }
    }
}
