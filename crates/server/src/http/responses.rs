//! The error responses that every operation of the API may return.

use utoipa::IntoResponses;

use crate::problem::Problem;

/// The error responses that every operation may return, for the OpenAPI document: name it in `responses(...)` of
/// `#[utoipa::path]`.
#[derive(IntoResponses)]
#[allow(dead_code, reason = "only the OpenAPI document uses the variants")]
pub enum ErrorResponses {
    /// The request is wrong. Nothing was changed.
    #[response(status = 400, content_type = "application/problem+json")]
    Invalid(#[to_schema] Problem),
    /// The token is missing or not valid.
    #[response(status = 401, content_type = "application/problem+json")]
    Unauthenticated(#[to_schema] Problem),
    /// The role of the token does not permit the call.
    #[response(status = 403, content_type = "application/problem+json")]
    Forbidden(#[to_schema] Problem),
    /// There is no such job, worker, token or path.
    #[response(status = 404, content_type = "application/problem+json")]
    NotFound(#[to_schema] Problem),
    /// The database cannot be reached. Retry later.
    #[response(status = 503, content_type = "application/problem+json")]
    Unavailable(#[to_schema] Problem),
}
