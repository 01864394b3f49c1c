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
    Invalid(Problem),
    /// The token is missing or not valid.
    #[response(status = 401, content_type = "application/problem+json")]
    Unauthenticated(Problem),
    /// The role of the token does not permit the call.
    #[response(status = 403, content_type = "application/problem+json")]
    Forbidden(Problem),
    /// There is no such job, worker, token or path.
    #[response(status = 404, content_type = "application/problem+json")]
    NotFound(Problem),
    /// A limit is reached. Retry later, or send fewer requests at a time.
    #[response(status = 429, content_type = "application/problem+json")]
    Busy(Problem),
    /// The server or its database has a fault.
    #[response(status = 500, content_type = "application/problem+json")]
    Internal(Problem),
    /// The database cannot be reached. Retry later.
    #[response(status = 503, content_type = "application/problem+json")]
    Unavailable(Problem),
}

/// The error responses that operations with a body may return beside those.
#[derive(IntoResponses)]
#[allow(dead_code, reason = "only the OpenAPI document uses the variants")]
pub(crate) enum BodyErrorResponses {
    /// The body was not complete in time.
    #[response(status = 408, content_type = "application/problem+json")]
    Slow(Problem),
    /// The body has more than 4 MiB.
    #[response(status = 413, content_type = "application/problem+json")]
    TooLarge(Problem),
    /// The content type is not `application/json`.
    #[response(status = 415, content_type = "application/problem+json")]
    NotJson(Problem),
}
