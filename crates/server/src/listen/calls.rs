//! Limits the calls of the API that run at a time for one token: they share the database connections of the node, and one token must
//! leave some to the others.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use crate::auth::caller::Caller;
use crate::auth::middleware::refusal;
use crate::listen::per_token::PerToken;
use crate::problem::Problem;

/// Calls of one token that run at a time; the others wait. `pitwheel serve` has 8 connections for them, so two are left to others. With
/// fewer, one producer alone would not use the database as well as it can. Callers without a token count as one.
const RUNNING_MAX: usize = 6;
/// Calls of one token that wait: the streams of one connection, so that a program which sends all that HTTP/2 lets it send is not
/// refused at once.
const WAITING_MAX: usize = 2000;
/// How long a call waits. Less than calls wait for a database connection: that this token has too many is said, not that the
/// database does not answer.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// The services whose calls are limited. The reports of workers have limits of their own, and connections of their own.
const SERVICES: [&str; 3] =
    ["/pitwheel.v1.JobService/", "/pitwheel.v1.PipelineService/", "/pitwheel.v1.RecurringService/"];
/// The paths of the HTTP API.
const API: &str = "/api/v1/";
/// The stream of events, which uses no connection of its own.
const EVENTS: &str = "/api/v1/events";

/// The calls that run or wait.
pub(crate) struct Calls {
    tokens: PerToken<OfToken>,
    /// Calls of paths that begin with one of these last as long as their bodies.
    streamed_prefixes: Vec<String>,
}

/// Places for the calls of one token.
struct OfToken {
    running: Semaphore,
    waiting: Semaphore,
}

impl Default for OfToken {
    fn default() -> OfToken {
        OfToken { running: Semaphore::new(RUNNING_MAX), waiting: Semaphore::new(WAITING_MAX) }
    }
}

impl OfToken {
    /// Waits until the call may run. It runs until the permit is dropped. Safe to cancel: the call no longer waits.
    async fn begin(&self) -> Result<SemaphorePermit<'_>, Problem> {
        if let Ok(running) = self.running.try_acquire() {
            return Ok(running);
        }
        let busy = || Problem::busy("this token has too many calls under way: send fewer at a time");
        let _waiting = self.waiting.try_acquire().map_err(|_| busy())?;
        let running = timeout(WAIT_MAX, self.running.acquire()).await;
        running.ok().and_then(Result::ok).ok_or_else(busy)
    }
}

impl Calls {
    pub(crate) fn new(streamed_prefixes: Vec<String>) -> Calls {
        Calls { tokens: PerToken::default(), streamed_prefixes }
    }

    fn is_limited(&self, path: &str) -> bool {
        let is_call = path.starts_with(API) || SERVICES.iter().any(|service| path.starts_with(service));
        let is_streamed = self.streamed_prefixes.iter().any(|prefix| path.starts_with(prefix));
        is_call && !is_streamed && path != EVENTS
    }
}

/// Runs a call when its token may run one more, or refuses it.
pub(crate) async fn limit_calls(State(calls): State<Arc<Calls>>, request: Request, next: Next) -> Response {
    if !calls.is_limited(request.uri().path()) {
        return next.run(request).await;
    }
    let token = request.extensions().get::<Caller>().and_then(Caller::token);
    let of_token = calls.tokens.of(token, OfToken::default);
    match of_token.begin().await {
        Ok(_running) => next.run(request).await,
        Err(problem) => refusal(&request, problem),
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use axum::Router;
    use axum::body::Body;
    use axum::middleware::from_fn_with_state;
    use futures_util::FutureExt;
    use pitwheel::Role;
    use tonic::codegen::Service;

    use super::*;

    type Call = Pin<Box<dyn Future<Output = Response>>>;

    /// Calls that run for as long as they may, under the limits of a server.
    fn endless() -> impl FnMut(Option<i64>, &str) -> Call {
        let calls = Arc::new(Calls::new(vec!["/api/v1/upload/".to_owned()]));
        let mut routes =
            Router::new().fallback(std::future::pending::<()>).layer(from_fn_with_state(calls, limit_calls));
        move |token, path| {
            let mut request = Request::new(Body::empty());
            *request.uri_mut() = path.parse().expect("a path");
            let caller = match token {
                Some(id) => Caller::with_token(id, "a token", Role::Viewer),
                None => Caller::loopback(),
            };
            request.extensions_mut().insert(caller);
            let call = routes.call(request);
            Box::pin(async move { call.await.expect("an answer") })
        }
    }

    const JOBS: &str = "/api/v1/jobs";

    #[tokio::test(start_paused = true)]
    async fn a_call_beyond_the_limit_of_its_token_waits_and_is_then_refused() {
        let mut call = endless();
        for token in [None, Some(1)] {
            let mut running: Vec<_> = (0..RUNNING_MAX).map(|_| call(token, JOBS)).collect();
            assert!(running.iter_mut().all(|call| call.now_or_never().is_none()));
            for path in [JOBS, "/api/v1/workers"] {
                assert_eq!(call(token, path).await.status(), 429);
            }
            let grpc = call(token, "/pitwheel.v1.JobService/Enqueue").await;
            assert_eq!(grpc.headers()["grpc-status"], "8");
            let mut next = call(token, JOBS);
            assert!((&mut next).now_or_never().is_none());
            running.truncate(1);
            let refused = timeout(2 * WAIT_MAX, next).await;
            assert!(refused.is_err(), "it runs now");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn calls_of_one_token_leave_room_for_other_tokens_and_other_paths() {
        let mut call = endless();
        let mut running: Vec<_> = (0..RUNNING_MAX).map(|_| call(Some(1), JOBS)).collect();
        assert!(running.iter_mut().all(|call| call.now_or_never().is_none()));
        for (token, path) in [
            (Some(2), JOBS),
            (None, JOBS),
            (Some(1), EVENTS),
            (Some(1), "/api/v1/upload/7"),
            (Some(1), "/pitwheel.v1.WorkerService/ReportResult"),
            (Some(1), "/invoices"),
        ] {
            assert!(timeout(2 * WAIT_MAX, call(token, path)).await.is_err(), "{path} runs");
        }
    }

    #[tokio::test]
    async fn a_call_is_refused_at_once_when_too_many_wait() {
        let mut call = endless();
        let mut others: Vec<_> = (0..RUNNING_MAX + WAITING_MAX).map(|_| call(Some(1), JOBS)).collect();
        assert!(others.iter_mut().all(|call| call.now_or_never().is_none()));
        let refused = call(Some(1), JOBS).now_or_never().expect("an answer at once");
        assert_eq!(refused.status(), 429);
        others.pop();
        assert!(call(Some(1), JOBS).now_or_never().is_none(), "it waits");
    }
}
