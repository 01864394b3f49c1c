//! Limits the calls of the API that run at a time for one token: they share the database connections of the node, and one token must
//! leave some to the others.
//!
//! A call runs to its end although its caller has given up. Postgres works on its statement all the same, and without its place in the
//! meantime a caller that gives up again and again would take every connection.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::auth::caller::Caller;
use crate::auth::middleware::{refusal, refusal_at};
use crate::background::Tasks;
use crate::listen::bodies::Room;
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
    tasks: Tasks,
}

/// Places for the calls of one token.
struct OfToken {
    running: Arc<Semaphore>,
    waiting: Semaphore,
}

/// The place of a call that runs. The token is remembered as long.
struct Running {
    _permit: OwnedSemaphorePermit,
    _of_token: Arc<OfToken>,
}

impl Default for OfToken {
    fn default() -> OfToken {
        OfToken { running: Arc::new(Semaphore::new(RUNNING_MAX)), waiting: Semaphore::new(WAITING_MAX) }
    }
}

impl OfToken {
    /// Waits until the call may run. Safe to cancel: the call no longer waits.
    async fn begin(self: Arc<OfToken>) -> Result<Running, Problem> {
        let permit = match self.running.clone().try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => self.wait().await?,
        };
        Ok(Running { _permit: permit, _of_token: self })
    }

    async fn wait(&self) -> Result<OwnedSemaphorePermit, Problem> {
        let busy = || Problem::busy("this token has too many calls under way: send fewer at a time");
        let _waiting = self.waiting.try_acquire().map_err(|_| busy())?;
        let permit = timeout(WAIT_MAX, self.running.clone().acquire_owned()).await;
        permit.ok().and_then(Result::ok).ok_or_else(busy)
    }
}

impl Calls {
    pub(crate) fn new(streamed_prefixes: Vec<String>, tasks: Tasks) -> Calls {
        Calls { tokens: PerToken::default(), streamed_prefixes, tasks }
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
    let running = match of_token.begin().await {
        Ok(running) => running,
        Err(problem) => return refusal(&request, problem),
    };
    let (uri, room) = (request.uri().clone(), request.extensions().get::<Room>().cloned());
    let call = async move {
        let response = next.run(request).await;
        drop((running, room));
        response
    };
    match calls.tasks.spawn(call).await {
        Ok(Some(response)) => response,
        Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
        _ => refusal_at(uri.path(), Problem::stopping()),
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
    use crate::background::Background;

    type Call = Pin<Box<dyn Future<Output = Response>>>;

    /// Calls whose handlers run until they get a permit of `ends`, under the limits of a server.
    fn endless(ends: &Arc<Semaphore>) -> impl FnMut(Option<i64>, &str) -> Call + use<> {
        let (background, ends) = (Background::default(), ends.clone());
        let calls = Calls::new(vec!["/api/v1/upload/".to_owned()], background.tasks().clone());
        let handler = move || {
            let ends = ends.clone();
            async move { ends.acquire().await.expect("it is not closed").forget() }
        };
        let mut routes =
            Router::new().fallback(handler).layer(from_fn_with_state(Arc::new(calls), limit_calls));
        move |token, path| {
            let _ends_with_the_test = &background;
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

    fn never() -> Arc<Semaphore> {
        Arc::new(Semaphore::new(0))
    }

    const JOBS: &str = "/api/v1/jobs";

    #[tokio::test(start_paused = true)]
    async fn a_call_beyond_the_limit_of_its_token_waits_and_is_then_refused() {
        let ends = never();
        let mut call = endless(&ends);
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
            ends.add_permits(RUNNING_MAX);
            for call in running {
                assert_eq!(call.await.status(), 200);
            }
            assert!(timeout(2 * WAIT_MAX, &mut next).await.is_err(), "it runs now");
            ends.add_permits(1);
            assert_eq!(next.await.status(), 200);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_whose_caller_gives_up_keeps_its_place_until_its_handler_ends() {
        let ends = never();
        let mut call = endless(&ends);
        for _ in 0..RUNNING_MAX {
            assert!(call(Some(1), JOBS).now_or_never().is_none());
        }
        // What is remembered of tokens without a call is forgotten now.
        assert!(call(Some(2), JOBS).now_or_never().is_none());
        assert_eq!(call(Some(1), JOBS).await.status(), 429);
        ends.add_permits(RUNNING_MAX + 2);
        assert_eq!(call(Some(1), JOBS).await.status(), 200, "all have ended");
    }

    #[tokio::test(start_paused = true)]
    async fn calls_of_one_token_leave_room_for_other_tokens_and_other_paths() {
        let mut call = endless(&never());
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
        let mut call = endless(&never());
        let mut others: Vec<_> = (0..RUNNING_MAX + WAITING_MAX).map(|_| call(Some(1), JOBS)).collect();
        assert!(others.iter_mut().all(|call| call.now_or_never().is_none()));
        let refused = call(Some(1), JOBS).now_or_never().expect("an answer at once");
        assert_eq!(refused.status(), 429);
        others.pop();
        assert!(call(Some(1), JOBS).now_or_never().is_none(), "it waits");
    }

    #[tokio::test]
    async fn calls_that_still_run_end_with_the_server() {
        let background = Background::default();
        let calls = Calls::new(Vec::new(), background.tasks().clone());
        let mut routes = Router::new()
            .fallback(std::future::pending::<()>)
            .layer(from_fn_with_state(Arc::new(calls), limit_calls));
        let mut request = Request::new(Body::empty());
        *request.uri_mut() = JOBS.parse().expect("a path");
        let mut call = Box::pin(routes.call(request));
        assert!((&mut call).now_or_never().is_none());
        background.end().await;
        assert_eq!(call.await.expect("an answer").status(), 503);
    }
}
