//! What keeps a server from starting, and the table from error codes to HTTP and gRPC.

use std::net::SocketAddr;

use axum::http::StatusCode;
use pitwheel::DatabaseError;
use tonic::Code;

/// Why a server did not start, or stopped serving.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The database cannot be reached, or its schema does not fit this version.
    #[error(transparent)]
    Pitwheel(#[from] pitwheel::Error),
    /// The listener failed.
    #[error("cannot serve: {0}")]
    Transport(#[from] tonic::transport::Error),
    /// A certificate or key cannot be used.
    #[error("TLS cannot be set up: {0}")]
    Tls(String),
    /// The address can be reached from other machines, which need a token, and no token exists.
    #[error(
        "`{0}` can be reached from other machines and no token exists: create one with `pitwheel tokens create NAME --role admin`, or listen on 127.0.0.1 or [::1]"
    )]
    Open(SocketAddr),
    /// The routes of the application clash with those of the server, or with each other.
    #[error("cannot add the routes: {0}")]
    Routes(String),
}

/// Every error code with its HTTP status and its gRPC code. `docs/errors.md` shows the same table; a test compares them.
const CODES: [(&str, StatusCode, Code); 13] = [
    ("bad_url", StatusCode::SERVICE_UNAVAILABLE, Code::Unavailable),
    ("database", StatusCode::SERVICE_UNAVAILABLE, Code::Unavailable),
    ("schema_behind", StatusCode::SERVICE_UNAVAILABLE, Code::FailedPrecondition),
    ("schema_ahead", StatusCode::SERVICE_UNAVAILABLE, Code::FailedPrecondition),
    ("bad_payload", StatusCode::BAD_REQUEST, Code::InvalidArgument),
    ("invalid", StatusCode::BAD_REQUEST, Code::InvalidArgument),
    ("not_found", StatusCode::NOT_FOUND, Code::NotFound),
    ("key_taken", StatusCode::CONFLICT, Code::AlreadyExists),
    ("not_stale", StatusCode::CONFLICT, Code::FailedPrecondition),
    ("not_claimed", StatusCode::CONFLICT, Code::FailedPrecondition),
    ("unauthenticated", StatusCode::UNAUTHORIZED, Code::Unauthenticated),
    ("forbidden", StatusCode::FORBIDDEN, Code::PermissionDenied),
    ("busy", StatusCode::TOO_MANY_REQUESTS, Code::ResourceExhausted),
];

/// The HTTP status and the gRPC code for an error code. A code that this version does not know is worth a retry.
pub(crate) fn statuses(code: &str) -> (StatusCode, Code) {
    let row = CODES.iter().find(|(known, ..)| *known == code);
    row.map_or((StatusCode::SERVICE_UNAVAILABLE, Code::Unavailable), |(_, http, grpc)| (*http, *grpc))
}

/// The HTTP status and the gRPC code for an error of the library.
pub(crate) fn statuses_of(error: &pitwheel::Error) -> (StatusCode, Code) {
    match error {
        // Postgres rejected a value (SQLSTATE class 22): the caller sent it, and a retry fails again.
        pitwheel::Error::Database(DatabaseError::Refused { code, .. }) if code.starts_with("22") => {
            statuses("invalid")
        }
        pitwheel::Error::Database(DatabaseError::Refused { .. }) if !error.is_transient() => {
            (StatusCode::INTERNAL_SERVER_ERROR, Code::Internal)
        }
        _ => statuses(error.code()),
    }
}

#[cfg(test)]
mod tests {
    use pitwheel::PayloadError;

    use super::*;

    /// The table of docs/errors.md: code, HTTP status, gRPC code.
    fn documented() -> Vec<(String, u16, String)> {
        let text = include_str!("../../../docs/errors.md");
        let rows = text.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| code"));
        let cells = rows.map(|row| row.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>());
        cells.map(|cells| (cells[1].clone(), cells[2].parse().unwrap_or(0), cells[3].clone())).collect()
    }

    #[test]
    fn errors_are_answered_as_the_document_says() {
        let errors = [
            pitwheel::Error::Url(String::new()),
            pitwheel::Error::Database(DatabaseError::Unreachable(String::new())),
            pitwheel::Error::SchemaBehind { found: 0, needed: 1 },
            pitwheel::Error::SchemaAhead { found: 2, known: 1 },
            pitwheel::Error::Payload { what: "payload", problem: PayloadError::Nul },
            pitwheel::Error::Invalid(String::new()),
            pitwheel::Error::NotFound(1, ""),
            pitwheel::Error::KeyTaken(1),
            pitwheel::Error::NotStale(1, String::new()),
        ];
        let of_library = errors.iter().map(|error| (error.code(), statuses_of(error)));
        let own = ["not_claimed", "unauthenticated", "forbidden", "busy"].map(|code| (code, statuses(code)));
        let plain = |grpc: &str| grpc.replace('_', "").to_lowercase();
        let answered: Vec<_> = of_library
            .chain(own)
            .map(|(code, (http, grpc))| (code.to_owned(), http.as_u16(), plain(&format!("{grpc:?}"))))
            .collect();
        let documented: Vec<_> =
            documented().into_iter().map(|(code, http, grpc)| (code, http, plain(&grpc))).collect();
        assert_eq!(answered, documented);
        assert_eq!(CODES.len(), documented.len(), "every code is documented");
    }
}
