//! Jobs of the ingestion over HTTP.

use axum::Json;
use axum::extract::State;
use pitwheel::Role;
use pitwheel_server::{Caller, ErrorResponses, Path, Problem, Query};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::http::problem::problem;
use crate::http::views::JobView;
use crate::ingest::{Ingest, PAGE_MAX};
use crate::lane::{LaneFilter, Method, Target};

/// One page of jobs.
#[derive(Debug, Deserialize, IntoParams)]
pub(crate) struct JobsQuery {
    /// Only ids below this one: the `next` of the page before.
    before: Option<i64>,
    /// At most this many, up to 1000. Default: 50.
    limit: Option<i64>,
    /// Only this module.
    module: Option<String>,
    /// Only this entry type.
    entry_type: Option<String>,
    /// Only this target.
    target: Option<Target>,
    /// Only this method.
    method: Option<Method>,
    /// Only this year.
    year: Option<i16>,
}

/// One page of jobs.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = IngestJobPage)]
pub(crate) struct JobPage {
    jobs: Vec<JobView>,
    /// The `before` of the next page; null after the last page.
    next: Option<i64>,
}

/// Lists the jobs of lanes, newest first.
#[utoipa::path(get, path = "/api/v1/ingest/jobs", params(JobsQuery),
    responses((status = 200, body = JobPage), ErrorResponses))]
pub(crate) async fn list_ingest_jobs(
    State(ingest): State<Ingest>,
    caller: Caller,
    Query(query): Query<JobsQuery>,
) -> Result<Json<JobPage>, Problem> {
    caller.require(Role::Viewer)?;
    let (before, limit) = (query.before, query.limit.unwrap_or(50).clamp(1, PAGE_MAX));
    let JobsQuery { module, entry_type, target, method, year, .. } = query;
    let filter = LaneFilter { module, entry_type, target, method, year };
    let found = ingest.jobs(&filter, before, limit).await.map_err(problem)?;
    let is_full = usize::try_from(limit).is_ok_and(|limit| found.len() == limit);
    let next = found.last().filter(|_| is_full).map(|job| job.sync.job_id);
    Ok(Json(JobPage { jobs: found.into_iter().map(JobView::from).collect(), next }))
}

/// Shows a job. Its progress can be watched at the path in `events`.
#[utoipa::path(get, path = "/api/v1/ingest/jobs/{id}", params(("id" = i64, Path)),
    responses((status = 200, body = JobView), ErrorResponses))]
pub(crate) async fn show_ingest_job(
    State(ingest): State<Ingest>,
    caller: Caller,
    Path(id): Path<i64>,
) -> Result<Json<JobView>, Problem> {
    caller.require(Role::Viewer)?;
    Ok(Json(ingest.job(id).await.map_err(problem)?.into()))
}
