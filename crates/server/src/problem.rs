//! Errors as the HTTP door tells them (RFC 9457).

use axum::http::header::{CONTENT_TYPE, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use pitwheel::{DatabaseError, Error};
use serde::Serialize;
use utoipa::ToSchema;

/// What went wrong.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Problem {
    /// `urn:pitwheel:error:` and the code.
    #[serde(rename = "type")]
    kind: String,
    /// The code: a section of docs/errors.md.
    #[schema(example = "not_found")]
    title: &'static str,
    /// The HTTP status.
    status: u16,
    /// What exactly, and what to do about it.
    detail: String,
}

impl Problem {
    fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Problem {
        let kind = format!("urn:pitwheel:error:{code}");
        Problem { kind, title: code, status: status.as_u16(), detail: detail.into() }
    }

    pub(crate) fn invalid(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, "invalid", detail)
    }

    pub(crate) fn unauthenticated(detail: &str) -> Problem {
        Problem::new(StatusCode::UNAUTHORIZED, "unauthenticated", detail)
    }

    pub(crate) fn forbidden(detail: String) -> Problem {
        Problem::new(StatusCode::FORBIDDEN, "forbidden", detail)
    }

    pub(crate) fn missing(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::NOT_FOUND, "not_found", detail)
    }

    pub(crate) fn busy(detail: &str) -> Problem {
        Problem::new(StatusCode::TOO_MANY_REQUESTS, "busy", detail)
    }

    /// One that the framework found: a body that is too large, a method that is not there.
    pub(crate) fn refused(status: StatusCode, detail: impl Into<String>) -> Problem {
        Problem::new(status, "invalid", detail)
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Problem {
        let status = match &error {
            Error::NotFound(..) => StatusCode::NOT_FOUND,
            Error::Payload { .. } | Error::Invalid(_) => StatusCode::BAD_REQUEST,
            Error::KeyTaken(_) => StatusCode::CONFLICT,
            // A value that Postgres does not take (class 22): the caller's, and no use in repeating.
            Error::Database(DatabaseError::Refused { code, .. }) if code.starts_with("22") => {
                StatusCode::BAD_REQUEST
            }
            Error::Database(DatabaseError::Refused { .. }) if !error.is_transient() => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        if status.is_server_error() {
            tracing::warn!(%error, "a call failed");
        }
        Problem::new(status, error.code(), error.to_string())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, axum::Json(self)).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use pitwheel::PayloadError;

    use super::*;

    /// What docs/errors.md says of each code: HTTP status and gRPC code.
    fn documented() -> Vec<(String, u16, String)> {
        let text = include_str!("../../../docs/errors.md");
        let rows = text.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| code"));
        let cells = rows.map(|row| row.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>());
        cells.map(|cells| (cells[1].clone(), cells[2].parse().unwrap_or(0), cells[3].clone())).collect()
    }

    #[test]
    fn both_doors_tell_errors_as_the_document_says() {
        let errors = || {
            [
                Error::Url(String::new()),
                Error::Database(DatabaseError::Unreachable(String::new())),
                Error::SchemaBehind { found: 0, needed: 1 },
                Error::SchemaAhead { found: 2, known: 1 },
                Error::Payload { what: "payload", problem: PayloadError::Nul },
                Error::Invalid(String::new()),
                Error::NotFound(1, ""),
                Error::KeyTaken(1),
            ]
        };
        let told = errors().into_iter().map(|error| {
            let grpc = format!("{:?}", crate::grpc::messages::status(&error).code());
            let problem = Problem::from(error);
            (problem.title.to_owned(), problem.status, grpc)
        });
        let own = [
            (Problem::unauthenticated(""), "Unauthenticated"),
            (Problem::forbidden(String::new()), "PermissionDenied"),
            (Problem::busy(""), "ResourceExhausted"),
        ];
        let own = own
            .into_iter()
            .map(|(problem, grpc)| (problem.title.to_owned(), problem.status, grpc.to_owned()));
        let words = |grpc: &str| grpc.replace('_', "").to_lowercase();
        let told: Vec<_> = told.chain(own).map(|(code, status, grpc)| (code, status, words(&grpc))).collect();
        let documented: Vec<_> =
            documented().into_iter().map(|(code, status, grpc)| (code, status, words(&grpc))).collect();
        assert_eq!(told, documented);
    }
}
