//! All routes of the HTTP API: `/api/v1`, its description at `/api/openapi.json`, metrics and health.

use std::sync::Arc;
use std::time::Instant;

use ::metrics::{counter, histogram};
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, FromRef, MatchedPath, Request};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use pitwheel::Pitwheel;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::auth::middleware::is_grpc;
use crate::dispatch::node::Node;
use crate::error::Error;
use crate::http::openapi::document;
use crate::http::recover::StaleAfter;
use crate::http::{
    audit, claim, events, jobs, kinds, lanes, outbox, own_routes, pipelines, probes, queues, recover,
    recurring, tokens, workers,
};
use crate::limits;
use crate::observe::database_check::DatabaseCheck;
use crate::observe::metrics::Metrics;
use crate::observe::watch::Watch;
use crate::problem::Problem;
use crate::readiness::Readiness;

/// Where the paths of the document are served.
const API: &str = "/api/v1";
const DOCUMENT: &str = "/api/openapi.json";
const METRICS: &str = "/metrics";
const READY: &str = "/readyz";
const HEALTH: &str = "/healthz";

/// What the handlers share.
#[derive(Clone)]
pub(crate) struct Api {
    pub(crate) pitwheel: Pitwheel,
    pub(crate) node: Arc<Node>,
    pub(crate) watch: Arc<Watch>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) readiness: Readiness,
    pub(crate) database: Arc<DatabaseCheck>,
    pub(crate) stale_after: StaleAfter,
}

impl FromRef<Api> for Pitwheel {
    fn from_ref(api: &Api) -> Pitwheel {
        api.pitwheel.clone()
    }
}

impl FromRef<Api> for Arc<Node> {
    fn from_ref(api: &Api) -> Arc<Node> {
        api.node.clone()
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

impl FromRef<Api> for StaleAfter {
    fn from_ref(api: &Api) -> StaleAfter {
        api.stale_after
    }
}

impl FromRef<Api> for Readiness {
    fn from_ref(api: &Api) -> Readiness {
        api.readiness.clone()
    }
}

impl FromRef<Api> for Arc<DatabaseCheck> {
    fn from_ref(api: &Api) -> Arc<DatabaseCheck> {
        api.database.clone()
    }
}

/// The routes under [`API`], with their description.
fn api_routes() -> OpenApiRouter<Api> {
    OpenApiRouter::with_openapi(document())
        .routes(routes!(jobs::list_jobs, jobs::enqueue_jobs))
        .routes(routes!(jobs::show_job))
        .routes(routes!(jobs::cancel_jobs))
        .routes(routes!(jobs::retry_jobs))
        .routes(routes!(jobs::delete_jobs))
        .routes(routes!(jobs::reschedule_jobs))
        .routes(routes!(recover::recover_job))
        .routes(routes!(claim::claim_job))
        .routes(routes!(jobs::list_history))
        .routes(routes!(lanes::show_current))
        .routes(routes!(lanes::list_lane_jobs))
        .routes(routes!(queues::list_queues))
        .routes(routes!(queues::pause_queue))
        .routes(routes!(queues::resume_queue))
        .routes(routes!(recurring::list_recurring, recurring::create_recurring))
        .routes(routes!(recurring::show_recurring, recurring::delete_recurring))
        .routes(routes!(recurring::enable_recurring))
        .routes(routes!(recurring::disable_recurring))
        .routes(routes!(recurring::run_recurring))
        .routes(routes!(recurring::change_cadence))
        .routes(routes!(recurring::next_times))
        .routes(routes!(recurring::list_runs))
        .routes(routes!(pipelines::list_pipelines, pipelines::create_pipeline))
        .routes(routes!(pipelines::show_pipeline))
        .routes(routes!(pipelines::cancel_pipeline))
        .routes(routes!(pipelines::retry_pipeline))
        .routes(routes!(outbox::show_outbox))
        .routes(routes!(outbox::list_parked))
        .routes(routes!(outbox::unpark_entities))
        .routes(routes!(outbox::replay_events))
        .routes(routes!(outbox::trace_event))
        .routes(routes!(kinds::list_kinds))
        .routes(routes!(kinds::change_kind))
        .routes(routes!(workers::list_workers))
        .routes(routes!(workers::quiet_worker))
        .routes(routes!(workers::drain_worker))
        .routes(routes!(workers::resume_worker))
        .routes(routes!(tokens::list_tokens, tokens::create_token))
        .routes(routes!(tokens::revoke_token))
        .routes(routes!(audit::list_audit))
        .routes(routes!(events::watch_events))
}

/// All routes, with those of the application and the document that describes them, to be merged with those of gRPC.
pub(crate) fn router(added: Vec<OpenApiRouter>) -> Result<Router<Api>, Error> {
    let (routes, mut document) = api_routes().split_for_parts();
    let routes = Router::new().nest(API, routes).merge(probe_routes());
    let paths = (API, [DOCUMENT, METRICS, READY, HEALTH].as_slice());
    let routes = own_routes::add(routes, &mut document, paths, added)?;
    Ok(routes
        .route(DOCUMENT, show(&document)?)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn(measure))
        .layer(DefaultBodyLimit::max(limits::MESSAGE_BYTES_MAX)))
}

/// What probes and scrapers read.
pub(crate) fn probe_routes() -> Router<Api> {
    Router::new()
        .route(METRICS, get(probes::metrics))
        .route(READY, get(probes::ready))
        .route(HEALTH, get(probes::health))
}

/// Shows the document, which is written once: it has hundreds of kilobytes, and every caller may read it.
fn show(document: &OpenApi) -> Result<MethodRouter<Api>, Error> {
    let text = document.to_json().map_err(|error| Error::Routes(error.to_string()))?;
    let text = Bytes::from(text);
    Ok(get(move || async move { ([(CONTENT_TYPE, "application/json")], text) }))
}

async fn wrong_method(request: Request) -> Problem {
    let (method, path) = (request.method(), request.uri().path());
    Problem::refused(
        StatusCode::METHOD_NOT_ALLOWED,
        format!("`{path}` does not take {method}: see /api/openapi.json"),
    )
}

/// Counts and times requests by route and status. A stream of events is counted when it starts.
async fn measure(path: Option<MatchedPath>, request: Request, next: Next) -> Response {
    let started_at = Instant::now();
    let response = next.run(request).await;
    let route = path.map_or_else(|| "none".to_owned(), |path| path.as_str().to_owned());
    let code = response.status().as_u16().to_string();
    counter!("pitwheel_http_requests_total", "route" => route.clone(), "code" => code).increment(1);
    histogram!("pitwheel_http_request_duration_seconds", "route" => route).record(started_at.elapsed());
    response
}

/// The answer for a path that has no route.
pub(crate) async fn not_found(request: Request) -> Response {
    if is_grpc(&request) {
        return tonic::Status::unimplemented("no such method").into_http::<axum::body::Body>();
    }
    let path = request.uri().path();
    Problem::not_found(format!("there is no route `{path}`: see /api/openapi.json")).into_response()
}

#[cfg(test)]
mod tests {
    use axum::http::Method;

    use super::*;
    use crate::auth::permissions::needed;

    #[test]
    fn every_call_with_a_body_needs_a_permission_before_it_is_read() {
        let (_, document) = api_routes().split_for_parts();
        let mut with_body = 0;
        for (path, item) in &document.paths.paths {
            for (method, operation) in [
                (Method::POST, &item.post),
                (Method::PUT, &item.put),
                (Method::PATCH, &item.patch),
                (Method::DELETE, &item.delete),
            ] {
                if operation.as_ref().is_some_and(|operation| operation.request_body.is_some()) {
                    with_body += 1;
                    assert!(needed(&method, &format!("{API}{path}")).is_some(), "{method} {path}");
                }
            }
        }
        assert!(with_body > 10, "{with_body} calls with a body");
    }
}
