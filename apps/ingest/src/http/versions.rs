//! Versions of data over HTTP.

use axum::Json;
use axum::extract::State;
use pitwheel::Role;
use pitwheel_server::{Caller, ErrorResponses, Path, Problem, Query};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

use crate::error::Error;
use crate::http::problem::problem;
use crate::http::views::VersionView;
use crate::ingest::{Ingest, PAGE_MAX};

/// One page of versions.
#[derive(Debug, Deserialize, IntoParams)]
pub(crate) struct VersionsQuery {
    /// Only ids below this one.
    before: Option<i64>,
    /// At most this many, up to 1000. Default: 50.
    limit: Option<i64>,
}

/// Lists the versions of a lane, newest first.
#[utoipa::path(get, path = "/api/v1/ingest/lanes/{id}/versions", params(("id" = i64, Path), VersionsQuery),
    responses((status = 200, body = Vec<VersionView>), ErrorResponses))]
pub(crate) async fn list_ingest_versions(
    State(ingest): State<Ingest>,
    caller: Caller,
    Path(id): Path<i64>,
    Query(query): Query<VersionsQuery>,
) -> Result<Json<Vec<VersionView>>, Problem> {
    caller.require(Role::Viewer)?;
    let found = ingest.versions(id, query.before, query.limit.unwrap_or(50)).await.map_err(problem)?;
    Ok(Json(found.into_iter().map(VersionView::from).collect()))
}

/// Shows a version.
#[utoipa::path(get, path = "/api/v1/ingest/versions/{id}", params(("id" = i64, Path)),
    responses((status = 200, body = VersionView), ErrorResponses))]
pub(crate) async fn show_ingest_version(
    State(ingest): State<Ingest>,
    caller: Caller,
    Path(id): Path<i64>,
) -> Result<Json<VersionView>, Problem> {
    caller.require(Role::Viewer)?;
    Ok(Json(ingest.version(id).await.map_err(problem)?.into()))
}

/// Makes a loaded version the current one of its lane again.
#[utoipa::path(post, path = "/api/v1/ingest/versions/{id}/promote", params(("id" = i64, Path)),
    responses((status = 200, body = VersionView), ErrorResponses))]
pub(crate) async fn promote_ingest_version(
    State(ingest): State<Ingest>,
    caller: Caller,
    Path(id): Path<i64>,
) -> Result<Json<VersionView>, Problem> {
    caller.require(Role::Operator)?;
    Ok(Json(ingest.promote(id).await.map_err(problem)?.into()))
}

/// One page of rows.
#[derive(Debug, Deserialize, IntoParams)]
pub(crate) struct RowsQuery {
    /// Only lines above this one: the `next` of the page before.
    after: Option<i64>,
    /// At most this many, up to 1000. Default: 100.
    limit: Option<i64>,
}

/// One page of rows.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = IngestRowPage)]
pub(crate) struct RowPage {
    #[schema(value_type = Vec<Object>)]
    rows: Vec<Box<RawValue>>,
    /// The `after` of the next page; null after the last page.
    next: Option<i64>,
}

/// Lists the rows of a loaded version, current or not, by line.
#[utoipa::path(get, path = "/api/v1/ingest/versions/{id}/rows", params(("id" = i64, Path), RowsQuery),
    responses((status = 200, body = RowPage), ErrorResponses))]
pub(crate) async fn list_ingest_rows(
    State(ingest): State<Ingest>,
    caller: Caller,
    Path(id): Path<i64>,
    Query(query): Query<RowsQuery>,
) -> Result<Json<RowPage>, Problem> {
    caller.require(Role::Viewer)?;
    let limit = query.limit.unwrap_or(100).clamp(1, PAGE_MAX);
    let found = ingest.rows(id, query.after.unwrap_or_default(), limit).await.map_err(problem)?;
    let is_full = usize::try_from(limit).is_ok_and(|limit| found.len() == limit);
    let next = found.last().filter(|_| is_full).map(|(line, _)| *line);
    let rows = found.into_iter().map(|(_, data)| RawValue::from_string(data)).collect::<Result<Vec<_>, _>>();
    let rows = rows.map_err(|error| problem(Error::Invalid(error.to_string())))?;
    Ok(Json(RowPage { rows, next }))
}
