//! What every call of the API may be answered with instead.

use utoipa::IntoResponses;

use crate::problem::Problem;

/// What every call may be answered with instead.
#[derive(IntoResponses)]
#[allow(dead_code, reason = "for the description only")]
pub(crate) enum Answer {
    /// Something about the request is wrong; nothing was changed.
    #[response(status = 400, content_type = "application/problem+json")]
    Wrong(#[to_schema] Problem),
    /// A token is missing, or not known.
    #[response(status = 401, content_type = "application/problem+json")]
    Unknown(#[to_schema] Problem),
    /// The token's role does not allow it.
    #[response(status = 403, content_type = "application/problem+json")]
    Forbidden(#[to_schema] Problem),
    /// There is no such thing.
    #[response(status = 404, content_type = "application/problem+json")]
    Missing(#[to_schema] Problem),
    /// The database is away: try again.
    #[response(status = 503, content_type = "application/problem+json")]
    Away(#[to_schema] Problem),
}
