//! The middleware that finds the caller of every request, or refuses the request.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode, Version};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tonic::Status;

use crate::auth::caller::Caller;
use crate::auth::origin::{is_cross_site, is_proxied};
use crate::auth::permissions::needed;
use crate::auth::tokens::Tokens;
use crate::problem::Problem;

/// Paths that need no authentication: probes have no token.
const PUBLIC_PATHS: [&str; 2] = ["/healthz", "/readyz"];
/// The same for gRPC health checks.
const PUBLIC_GRPC_PREFIX: &str = "/grpc.health.";
/// The paths of the gRPC services begin with these.
const GRPC_PREFIXES: [&str; 3] = ["/pitwheel.v1.", "/grpc.reflection.", PUBLIC_GRPC_PREFIX];

/// How requests are authenticated.
pub(crate) struct Authentication {
    pub(crate) tokens: Arc<Tokens>,
    /// Whether requests without a token are refused.
    pub(crate) required: bool,
    /// Paths of the application that begin with one of these need no authentication.
    pub(crate) public_prefixes: Vec<String>,
}

impl Authentication {
    fn is_public(&self, path: &str) -> bool {
        is_probe(path) || self.public_prefixes.iter().any(|prefix| path.starts_with(prefix))
    }

    /// The caller of a request without a token: a program on this machine. The protocol does not matter: a page can send
    /// every content type, and on a connection with TLS it can use HTTP/2.
    fn without_token(&self, request: &Request) -> Result<Caller, Problem> {
        if self.required {
            return Err(Problem::unauthenticated(
                "this server needs a token: send `authorization: Bearer TOKEN`",
            ));
        }
        if is_proxied(request) {
            return Err(Problem::unauthenticated(
                "a call through a proxy or over HTTP/1.0 needs a token: send `authorization: Bearer TOKEN`",
            ));
        }
        if is_cross_site(request) {
            return Err(Problem::forbidden("a page of another site cannot call this server without a token"));
        }
        Ok(Caller::loopback())
    }
}

fn unknown_token() -> Problem {
    Problem::unauthenticated("the token is unknown, has expired or was revoked")
}

/// The token of a request.
enum Bearer {
    Missing,
    /// The header is there, but holds no bearer token.
    Malformed,
    Secret(String),
}

fn bearer(headers: &HeaderMap) -> Bearer {
    let Some(header) = headers.get(AUTHORIZATION) else { return Bearer::Missing };
    match header.to_str().ok().and_then(|value| value.split_once(' ')) {
        Some((scheme, secret)) if scheme.eq_ignore_ascii_case("bearer") => {
            Bearer::Secret(secret.trim().to_owned())
        }
        _ => Bearer::Malformed,
    }
}

/// Adds the [`Caller`] to the request, or answers why the request is refused.
pub(crate) async fn authenticate(
    State(authentication): State<Arc<Authentication>>,
    mut request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path();
    if is_grpc_path(path) && request.version() != Version::HTTP_2 {
        let detail = "gRPC needs HTTP/2: see /api/openapi.json for calls over HTTP/1.1";
        return http_refusal(Problem::refused(StatusCode::HTTP_VERSION_NOT_SUPPORTED, detail));
    }
    if authentication.is_public(path) {
        return next.run(request).await;
    }
    let caller = match bearer(request.headers()) {
        Bearer::Secret(secret) => authentication.tokens.caller(&secret).await.ok_or_else(unknown_token),
        Bearer::Malformed => Err(unknown_token()),
        Bearer::Missing => authentication.without_token(&request),
    };
    let permitted = caller.and_then(|caller| match needed(request.method(), request.uri().path()) {
        Some(permission) => caller.check(permission).map(|()| caller),
        None => Ok(caller),
    });
    match permitted {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(problem) => refusal(&request, problem),
    }
}

/// Checks the token of a request again, right before its handler runs. Since [`authenticate`], its body may have arrived slowly and it may
/// have waited for its place, while its token was revoked.
pub(crate) async fn check_again(
    State(authentication): State<Arc<Authentication>>,
    request: Request,
    next: Next,
) -> Response {
    let token = request.extensions().get::<Caller>().and_then(Caller::token);
    match token {
        Some(token) if !authentication.tokens.is_valid(token).await => refusal(&request, unknown_token()),
        _ => next.run(request).await,
    }
}

/// The answer to a request that is refused, in the form that its protocol needs.
pub(crate) fn refusal(request: &Request, problem: Problem) -> Response {
    refusal_at(request.uri().path(), problem)
}

/// The same, for a request with this path.
pub(crate) fn refusal_at(path: &str, problem: Problem) -> Response {
    if is_grpc_path(path) {
        return Status::from(problem).into_http::<axum::body::Body>().into_response();
    }
    http_refusal(problem)
}

/// In the extensions of an answer: its request was refused before it reached a handler, maybe because its caller has no token.
#[derive(Clone)]
pub(crate) struct Refused;

/// The answer to a request of HTTP that is refused.
pub(crate) fn http_refusal(problem: Problem) -> Response {
    let mut response = problem.into_refusal();
    response.extensions_mut().insert(Refused);
    response
}

/// Whether a path belongs to a probe of this server, which needs no authentication.
pub(crate) fn is_probe(path: &str) -> bool {
    PUBLIC_PATHS.contains(&path) || path.starts_with(PUBLIC_GRPC_PREFIX)
}

/// Whether a path belongs to a gRPC service.
pub(crate) fn is_grpc_path(path: &str) -> bool {
    GRPC_PREFIXES.iter().any(|prefix| path.starts_with(prefix))
}

/// Whether the caller of an unknown path expects an answer of gRPC. Nothing else may depend on the content type: a caller
/// can send any of them to any path.
pub(crate) fn is_grpc(request: &Request) -> bool {
    let content_type = request.headers().get(CONTENT_TYPE);
    request.version() == Version::HTTP_2
        && content_type.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}
