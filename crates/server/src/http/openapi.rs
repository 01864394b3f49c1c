//! The OpenAPI document.

use utoipa::openapi::OpenApi;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::{Modify, OpenApi as _};

use crate::problem::Problem;

/// Jobs, queues and workers of a Pitwheel over HTTP. Send `authorization: Bearer TOKEN`, unless the server listens on
/// loopback and needs no tokens. Errors are problem+json (RFC 9457). Lists have pages: pass `next` of a page as `before`
/// to get the following page.
#[derive(utoipa::OpenApi)]
#[openapi(
    info(title = "Pitwheel", license(name = "MIT OR Apache-2.0")),
    servers((url = "/api/v1")),
    security((), ("token" = [])),
    components(schemas(Problem)),
    modifiers(&TokenScheme)
)]
struct Document;

/// Adds the security scheme `token`: a bearer token.
struct TokenScheme;

impl Modify for TokenScheme {
    fn modify(&self, document: &mut OpenApi) {
        let token = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        document.components.get_or_insert_default().add_security_scheme("token", token);
    }
}

/// The document without its paths.
pub(crate) fn document() -> OpenApi {
    Document::openapi()
}
