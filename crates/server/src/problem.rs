//! Errors as callers see them: problem+json (RFC 9457) over HTTP, a status over gRPC.

use axum::http::header::{CONTENT_TYPE, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use pitwheel_proto::ERROR_CODE_HEADER;
use serde::Serialize;
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};
use utoipa::ToSchema;

use crate::error::{statuses, statuses_of};

/// Why a call was refused or failed.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Problem {
    /// `urn:pitwheel:error:` and the code.
    #[serde(rename = "type")]
    kind: String,
    /// The error code; `docs/errors.md` has a section for each.
    #[schema(example = "not_found")]
    title: &'static str,
    /// The HTTP status.
    status: u16,
    /// What went wrong, and what to do about it.
    detail: String,
    #[serde(skip)]
    #[schema(ignore)]
    grpc: Code,
}

impl Problem {
    fn new(code: &'static str, (http, grpc): (StatusCode, Code), detail: String) -> Problem {
        let kind = format!("urn:pitwheel:error:{code}");
        Problem { kind, title: code, status: http.as_u16(), detail, grpc }
    }

    /// What went wrong, and what to do about it.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    fn of_code(code: &'static str, detail: impl Into<String>) -> Problem {
        Problem::new(code, statuses(code), detail.into())
    }

    /// The request is wrong: code `invalid`, HTTP status 400.
    pub fn invalid(detail: impl Into<String>) -> Problem {
        Problem::of_code("invalid", detail)
    }

    /// There is no such thing: code `not_found`, HTTP status 404.
    pub fn not_found(detail: impl Into<String>) -> Problem {
        Problem::of_code("not_found", detail)
    }

    /// The caller's role does not permit the call: code `forbidden`, HTTP status 403.
    pub fn forbidden(detail: impl Into<String>) -> Problem {
        Problem::of_code("forbidden", detail)
    }

    /// The caller is not known: code `unauthenticated`, HTTP status 401.
    pub(crate) fn unauthenticated(detail: impl Into<String>) -> Problem {
        Problem::of_code("unauthenticated", detail)
    }

    /// A limit of the server is reached: code `busy`, HTTP status 429.
    pub fn busy(detail: impl Into<String>) -> Problem {
        Problem::of_code("busy", detail)
    }

    /// The server stopped before the call had ended: code `database`, HTTP status 503. Its statement may have been committed.
    pub(crate) fn stopping() -> Problem {
        Problem::of_code(
            "database",
            "this node is stopping, and the call may or may not have been done: repeat it at another node",
        )
    }

    /// The job was not claimed: code `not_claimed`, HTTP status 409.
    pub(crate) fn not_claimed(detail: impl Into<String>) -> Problem {
        Problem::of_code("not_claimed", detail)
    }

    /// The request has too many bytes: code `invalid`, HTTP status 413.
    pub(crate) fn too_large(detail: impl Into<String>) -> Problem {
        Problem::refused(StatusCode::PAYLOAD_TOO_LARGE, detail)
    }

    /// The request did not arrive in time: code `invalid`, HTTP status 408.
    pub(crate) fn too_slow(detail: impl Into<String>) -> Problem {
        Problem::new("invalid", (StatusCode::REQUEST_TIMEOUT, Code::DeadlineExceeded), detail.into())
    }

    /// The HTTP framework refused the request with this status: code `invalid`.
    pub(crate) fn refused(http: StatusCode, detail: impl Into<String>) -> Problem {
        Problem::new("invalid", (http, Code::InvalidArgument), detail.into())
    }
}

impl From<&pitwheel::Error> for Problem {
    fn from(error: &pitwheel::Error) -> Problem {
        Problem::new(error.code(), statuses_of(error), error.to_string())
    }
}

impl From<pitwheel::Error> for Problem {
    fn from(error: pitwheel::Error) -> Problem {
        Problem::from(&error)
    }
}

impl From<Problem> for Status {
    fn from(problem: Problem) -> Status {
        let mut status = Status::new(problem.grpc, problem.detail);
        status.metadata_mut().insert(ERROR_CODE_HEADER, MetadataValue::from_static(problem.title));
        status
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        if self.status >= StatusCode::INTERNAL_SERVER_ERROR.as_u16() {
            tracing::warn!(code = self.title, error = self.detail, "a call failed");
        }
        self.answer()
    }
}

impl Problem {
    /// The answer to a request that no handler got. Callers without a token can send any number of them, so the log has them at its
    /// lowest levels only.
    pub(crate) fn into_refusal(self) -> Response {
        tracing::debug!(code = self.title, error = self.detail, "a request was refused");
        self.answer()
    }

    fn answer(self) -> Response {
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
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Level, Metadata, Subscriber};

    use super::*;

    /// Counts warnings.
    #[derive(Clone, Default)]
    struct Warnings(Arc<AtomicUsize>);

    impl Subscriber for Warnings {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            *metadata.level() <= Level::WARN
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, _: &Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn only_a_call_that_failed_in_its_handler_is_worth_a_warning() {
        let warnings = Warnings::default();
        let _guard = tracing::subscriber::set_default(warnings.clone());
        let version = || Problem::refused(StatusCode::HTTP_VERSION_NOT_SUPPORTED, "gRPC needs HTTP/2");
        let refused = crate::auth::middleware::http_refusal(version());
        assert_eq!((refused.status().as_u16(), warnings.0.load(Ordering::Relaxed)), (505, 0));
        assert_eq!(version().into_response().status(), 505);
        assert_eq!(warnings.0.load(Ordering::Relaxed), 1);
    }
}
