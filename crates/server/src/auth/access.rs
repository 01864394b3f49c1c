//! Who calls, and what they may do.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, ORIGIN};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use pitwheel::engine::{Pool, TokenHash, hash, token_hashes};
use pitwheel::{Error, Role, TraceContext};
use tokio::sync::Mutex;
use tonic::Status;

use crate::problem::Problem;

/// For this long after it was revoked a token may still be good.
const REMEMBER: Duration = Duration::from_secs(2);
/// An unknown token may be a new one. It is looked up, at most this often and after this long, so that guessing is slow and
/// costs the database nothing.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// What a call needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Lists, counts, workers, history.
    See,
    /// One job that is known by its id.
    SeeJob,
    Enqueue,
    /// Changes to jobs, queues and workers.
    Operate,
    /// Tokens and the audit log.
    Administer,
    /// Running jobs.
    Work,
}

/// Somebody who was let in.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    /// As the audit log knows them.
    pub(crate) name: String,
    role: Role,
    pub(crate) token: Option<i64>,
}

impl Caller {
    pub(crate) fn may(&self, need: Need) -> bool {
        match self.role {
            Role::Admin => true,
            Role::Operator => !matches!(need, Need::Administer | Need::Work),
            Role::Viewer => matches!(need, Need::See | Need::SeeJob),
            Role::Worker => matches!(need, Need::Work | Need::Enqueue | Need::SeeJob),
            Role::Producer => matches!(need, Need::Enqueue | Need::SeeJob),
        }
    }

    /// The same question, for the gRPC door.
    pub(crate) fn needs(&self, need: Need) -> Result<(), Status> {
        self.may(need).then_some(()).ok_or_else(|| Status::permission_denied(self.refused()))
    }

    fn refused(&self) -> String {
        format!("{} has the role {}, which may not do this", self.name, self.role.as_str())
    }

    /// The same question, for the HTTP door.
    pub(crate) fn must(&self, need: Need) -> Result<(), Problem> {
        self.may(need).then_some(()).ok_or_else(|| Problem::forbidden(self.refused()))
    }

    /// Whether payloads of redacted kinds are kept from this caller.
    pub(crate) fn only_looks(&self) -> bool {
        !self.may(Need::Operate)
    }

    /// The token whose workers this caller may speak for; `None`: anybody's.
    pub(crate) fn only_own(&self) -> Option<i64> {
        self.token.filter(|_| self.role == Role::Worker)
    }
}

/// Why somebody was not let in.
enum Refused {
    NoToken,
    UnknownToken,
    /// A page of another site, or under another name, that a browser on this machine shows.
    Foreign,
}

impl Refused {
    fn words(&self) -> &'static str {
        match self {
            Refused::NoToken => "this server needs a token: send `authorization: Bearer TOKEN`",
            Refused::UnknownToken => "this token is not known here, has expired or was revoked",
            Refused::Foreign => "a page of another site may not call this server without a token",
        }
    }
}

/// The door-keeper of a node.
pub(crate) struct Access {
    pool: Pool,
    /// Whether nobody comes in without a token.
    required: bool,
    known: RwLock<HashMap<Vec<u8>, TokenHash>>,
    loaded_at: Mutex<Option<Instant>>,
}

impl Access {
    pub(crate) fn new(pool: Pool, required: bool) -> Access {
        Access { pool, required, known: RwLock::default(), loaded_at: Mutex::default() }
    }

    /// The tokens that are good now, not older than this.
    async fn refresh(&self, age: Duration) -> Result<(), Error> {
        let mut loaded_at = self.loaded_at.lock().await;
        if loaded_at.is_some_and(|at| at.elapsed() < age) {
            return Ok(());
        }
        // Also after a failure: a database that is away is not asked at every call.
        *loaded_at = Some(Instant::now());
        let hashes = self.pool.run(async |client| token_hashes(&client).await).await?;
        let known = hashes.into_iter().map(|token| (token.hash.clone(), token)).collect();
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = known;
        Ok(())
    }

    /// Whether there is any token at all.
    pub(crate) async fn any(&self) -> Result<bool, Error> {
        self.refresh(REMEMBER).await?;
        Ok(!self.known.read().unwrap_or_else(PoisonError::into_inner).is_empty())
    }

    /// Which of these tokens are not good any more.
    pub(crate) async fn revoked(&self, tokens: &[i64]) -> Result<Vec<i64>, Error> {
        self.refresh(REMEMBER).await?;
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let good = |token: &&i64| !known.values().any(|known| known.id == **token);
        Ok(tokens.iter().filter(good).copied().collect())
    }

    /// Whose secret this is.
    async fn owner(&self, secret: &str) -> Result<Caller, Refused> {
        let hash = hash(secret);
        for (wait, age) in [(Duration::ZERO, REMEMBER), (LOOK_AGAIN, LOOK_AGAIN)] {
            // After the wait, tokens read less than that ago were read after this call came.
            tokio::time::sleep(wait).await;
            // When the database is away, who was let in before still is.
            if let Err(error) = self.refresh(age).await {
                tracing::warn!(%error, "cannot read the tokens");
            }
            let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(token) = known.get(&hash) {
                let name = format!("token {}", token.name);
                return Ok(Caller { name, role: token.role, token: Some(token.id) });
            }
        }
        Err(Refused::UnknownToken)
    }

    /// Somebody without a token.
    fn stranger(&self, request: &Request) -> Result<Caller, Refused> {
        if self.required {
            return Err(Refused::NoToken);
        }
        if !is_grpc(request.headers()) && is_foreign(request) {
            return Err(Refused::Foreign);
        }
        Ok(Caller { name: "loopback".to_owned(), role: Role::Admin, token: None })
    }
}

/// The secret that a request came with.
fn secret(headers: &HeaderMap) -> Option<Result<String, Refused>> {
    let header = headers.get(AUTHORIZATION)?;
    let secret = header.to_str().ok().and_then(|value| value.split_once(' '));
    let bearer = secret.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    Some(bearer.map(|(_, secret)| secret.trim().to_owned()).ok_or(Refused::UnknownToken))
}

/// Lets somebody in, or says why not. Who is let in goes with the request.
pub(crate) async fn enter(State(access): State<Arc<Access>>, mut request: Request, next: Next) -> Response {
    let path = request.uri().path();
    if ["/healthz", "/readyz"].contains(&path) || path.starts_with("/grpc.health.") {
        return next.run(request).await;
    }
    let caller = match secret(request.headers()) {
        None => access.stranger(&request),
        Some(Ok(secret)) => access.owner(&secret).await,
        Some(Err(refused)) => Err(refused),
    };
    match caller {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(refused) if is_grpc(request.headers()) => {
            Status::unauthenticated(refused.words()).into_http::<axum::body::Body>().into_response()
        }
        Err(Refused::Foreign) => Problem::forbidden(Refused::Foreign.words().to_owned()).into_response(),
        Err(refused) => Problem::unauthenticated(refused.words()).into_response(),
    }
}

/// Who sent this gRPC request.
pub(crate) fn caller<T>(request: &tonic::Request<T>) -> Result<Caller, Status> {
    let caller = request.extensions().get::<Caller>().cloned();
    caller.ok_or_else(|| Status::unauthenticated("nobody let this call in"))
}

/// The trace context that a call came with.
pub(crate) fn trace_of(headers: &HeaderMap) -> Option<TraceContext> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    TraceContext::new(text("traceparent")?, text("tracestate"))
}

pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// Whether a browser sent this for a page that is not ours: one of another site, or one that calls this machine by a name
/// of its own.
fn is_foreign(request: &Request) -> bool {
    let text = |name: &str| request.headers().get(name).map(|value| value.to_str().unwrap_or("?"));
    let host = request.uri().authority().map(|authority| authority.as_str()).or(text(HOST.as_str()));
    let other_name = host.is_some_and(|host| !is_local(host));
    let other_site = text("sec-fetch-site").is_some_and(|site| !["same-origin", "none"].contains(&site));
    let other_origin = text(ORIGIN.as_str())
        .is_some_and(|origin| origin.split_once("://").map(|(_, authority)| authority) != host);
    other_name || other_site || other_origin
}

/// Whether a host, with or without a port, is this machine.
fn is_local(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name == "localhost" || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_local() {
        for host in ["localhost", "localhost:7475", "127.0.0.1:80", "[::1]:7475", "127.9.9.9"] {
            assert!(is_local(host), "{host}");
        }
        for host in ["evil.example", "127.0.0.1.evil.example:7475", "10.0.0.1:7475", "", "localhost.evil:1"] {
            assert!(!is_local(host), "{host}");
        }
    }
}
