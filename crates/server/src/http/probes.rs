//! Health, readiness and metrics: what probes and scrapers read.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::auth::caller::{Caller, Permission};
use crate::dispatch::node::Node;
use crate::observe::database_check::DatabaseCheck;
use crate::observe::metrics::{Metrics, NodeGauges};
use crate::observe::watch::Watch;
use crate::problem::Problem;
use crate::readiness::Readiness;

/// The process runs.
pub(crate) async fn health() -> Json<Value> {
    Json(json!({ "status": "ok" }))
}

/// The application is ready, the database answers, and its schema fits this version.
pub(crate) async fn ready(
    State(readiness): State<Readiness>,
    State(database): State<Arc<DatabaseCheck>>,
) -> Result<Response, Problem> {
    if let Some(reason) = readiness.reason() {
        let body = Json(json!({ "status": "not_ready", "reason": reason }));
        return Ok((StatusCode::SERVICE_UNAVAILABLE, body).into_response());
    }
    database.result().await?;
    Ok(Json(json!({ "status": "ready" })).into_response())
}

/// All metrics in Prometheus' text format.
pub(crate) async fn metrics(
    State(metrics): State<Arc<Metrics>>,
    State(node): State<Arc<Node>>,
    State(watch): State<Arc<Watch>>,
    caller: Caller,
) -> Result<Response, Problem> {
    caller.check(Permission::View)?;
    let gauges = NodeGauges { streams: node.streams.lock().len(), watchers: watch.len() };
    let text = metrics.render(gauges).await;
    Ok(([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response())
}
