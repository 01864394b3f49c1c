//! What can go wrong, as far as a caller would act differently.

use crate::job::payload::PayloadError;

/// What went wrong. [`Error::code`] is stable; `docs/errors.md` has a section on each.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The URL cannot be used. Nothing was connected to.
    #[error("database URL is not usable: {0}")]
    Url(String),
    /// Postgres could not be reached, or a statement failed. Worth repeating when [`Error::is_transient`].
    #[error("{0}")]
    Database(#[source] DatabaseError),
    /// The schema is not there, or older than this version needs.
    #[error("the schema is at version {found}, this version needs {needed}: run `pitwheel migrate up`")]
    SchemaBehind {
        /// The version in the database; 0 when there is none.
        found: i32,
        /// The version this build needs.
        needed: i32,
    },
    /// A newer Pitwheel has changed the schema in a way that this version cannot work with.
    #[error(
        "the schema is at version {found}, which this version (up to {known}) cannot work with: upgrade Pitwheel here"
    )]
    SchemaAhead {
        /// The version in the database.
        found: i32,
        /// The newest version this build knows.
        known: i32,
    },
    /// The payload, result or metadata cannot be kept. Nothing was written.
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
    /// No such job: it never was, it is finished, or its history was pruned.
    #[error("job {0} is not there: {1}")]
    NotFound(i64, &'static str),
    /// The job cannot come back while another live job has its key.
    #[error("job {0} cannot be retried: a live job has its kind and key, cancel that one first")]
    KeyTaken(i64),
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
        }
    }

    /// Whether the same call may succeed later, unchanged: the database was away, full, or busy.
    pub fn is_transient(&self) -> bool {
        matches!(self, Error::Database(error) if error.is_transient())
    }
}

/// A failed statement or connection, with the server's own words.
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
    /// The connection could not be made, broke, or did not answer in time.
    #[error("Postgres cannot be reached: {0}")]
    Unreachable(String),
}

impl DatabaseError {
    /// SQLSTATE classes that pass by themselves: connection, transaction rollback, resources, operator intervention.
    fn is_transient(&self) -> bool {
        match self {
            DatabaseError::Unreachable(_) => true,
            DatabaseError::Refused { code, .. } => {
                ["08", "40", "53", "55", "57"].iter().any(|class| code.starts_with(class))
            }
        }
    }

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

/// An error and what caused it, in one line: drivers say the useful part in the cause.
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
