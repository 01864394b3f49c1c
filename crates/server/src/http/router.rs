//! The HTTP door: the API under `/api/v1`, its description at `/api/openapi.json`, metrics and health.

use std::sync::Arc;
use std::time::Instant;

use ::metrics::{counter, histogram};
use axum::extract::{DefaultBodyLimit, FromRef, MatchedPath, Request, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use pitwheel::Pitwheel;
use serde_json::json;
use utoipa::openapi::OpenApi;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::{Modify, OpenApi as _};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::auth::access::{Caller, Need, is_grpc};
use crate::http::{admin, events, jobs, queues, workers};
use crate::limits;
use crate::observe::metrics::Metrics;
use crate::observe::watch::Watch;
use crate::problem::Problem;

/// Jobs, queues and workers of a Pitwheel, over HTTP. Send `authorization: Bearer TOKEN`, unless the server listens on
/// loopback. Errors are problem+json. Lists are paged: pass `next` of a page as `before` for the one after it.
#[derive(utoipa::OpenApi)]
#[openapi(
    info(title = "Pitwheel", license(name = "MIT OR Apache-2.0")),
    servers((url = "/api/v1")),
    security((), ("token" = [])),
    modifiers(&Tokens)
)]
struct Described;

/// Says in the description how a token is shown.
struct Tokens;

impl Modify for Tokens {
    fn modify(&self, description: &mut OpenApi) {
        let token = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        description.components.get_or_insert_default().add_security_scheme("token", token);
    }
}

/// What the handlers share.
#[derive(Clone)]
pub(crate) struct Api {
    pub(crate) pitwheel: Pitwheel,
    pub(crate) watch: Arc<Watch>,
    pub(crate) metrics: Arc<Metrics>,
}

impl FromRef<Api> for Pitwheel {
    fn from_ref(api: &Api) -> Pitwheel {
        api.pitwheel.clone()
    }
}

impl FromRef<Api> for Arc<Watch> {
    fn from_ref(api: &Api) -> Arc<Watch> {
        api.watch.clone()
    }
}

impl FromRef<Api> for Arc<Metrics> {
    fn from_ref(api: &Api) -> Arc<Metrics> {
        api.metrics.clone()
    }
}

/// All routes, to be put beside those of gRPC.
pub(crate) fn router(api: Api) -> Router {
    let (routes, description) = OpenApiRouter::with_openapi(Described::openapi())
        .routes(routes!(jobs::list, jobs::enqueue))
        .routes(routes!(jobs::show))
        .routes(routes!(jobs::cancel))
        .routes(routes!(jobs::retry))
        .routes(routes!(jobs::delete))
        .routes(routes!(jobs::reschedule))
        .routes(routes!(jobs::history))
        .routes(routes!(queues::list))
        .routes(routes!(queues::pause))
        .routes(routes!(queues::resume))
        .routes(routes!(queues::kinds))
        .routes(routes!(queues::say))
        .routes(routes!(workers::list))
        .routes(routes!(workers::quiet))
        .routes(routes!(workers::drain))
        .routes(routes!(workers::resume))
        .routes(routes!(admin::tokens, admin::create))
        .routes(routes!(admin::revoke))
        .routes(routes!(admin::audit))
        .routes(routes!(events::events))
        .split_for_parts();
    let description = Arc::new(description);
    Router::new()
        .nest("/api/v1", routes)
        .route("/api/openapi.json", get(move || described(description.clone())))
        .route("/metrics", get(metrics))
        .route("/readyz", get(ready))
        .with_state(api)
        .route("/healthz", get(|| async { Json(json!({ "status": "ok" })) }))
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn(measured))
        .layer(DefaultBodyLimit::max(limits::MESSAGE_BYTES_MAX))
}

async fn described(description: Arc<OpenApi>) -> Json<OpenApi> {
    Json((*description).clone())
}

/// Whether the database answers, with a schema that this version can work with.
async fn ready(State(pitwheel): State<Pitwheel>) -> Result<Response, Problem> {
    pitwheel.check_schema().await?;
    Ok(Json(json!({ "status": "ready" })).into_response())
}

async fn metrics(State(metrics): State<Arc<Metrics>>, caller: Caller) -> Result<Response, Problem> {
    caller.must(Need::See)?;
    let text = metrics.render().await;
    Ok(([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response())
}

async fn wrong_method(request: Request) -> Problem {
    let (method, path) = (request.method(), request.uri().path());
    Problem::refused(StatusCode::METHOD_NOT_ALLOWED, format!("{path} does not take {method}"))
}

/// Counts calls, by route and outcome. A stream of events counts as begun.
async fn measured(path: Option<MatchedPath>, request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let response = next.run(request).await;
    let route = path.map_or_else(|| "none".to_owned(), |path| path.as_str().to_owned());
    let code = response.status().as_u16().to_string();
    counter!("pitwheel_http_requests_total", "route" => route.clone(), "code" => code).increment(1);
    histogram!("pitwheel_http_request_duration_seconds", "route" => route).record(begun.elapsed());
    response
}

/// What nobody serves.
pub(crate) async fn nowhere(request: Request) -> Response {
    if is_grpc(request.headers()) {
        return tonic::Status::unimplemented("no such method").into_http::<axum::body::Body>();
    }
    let path = request.uri().path();
    Problem::missing(format!("nothing is at {path}: see /api/openapi.json")).into_response()
}
