//! Lanes over HTTP.

use axum::Json;
use axum::extract::State;
use pitwheel::{JobSummary, Lane, LaneFilter, Pitwheel};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::auth::caller::{Caller, Permission};
use crate::http::extract::{Query, page_limit};
use crate::http::jobs::JobPage;
use crate::http::responses::ErrorResponses;
use crate::problem::Problem;
use crate::views::JobLine;

/// A lane.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct LaneName {
    /// The name of the lane as JSON: a string, or an array of strings, integers, booleans and nulls.
    #[param(example = "[\"tenant\", 7, null]")]
    lane: String,
}

/// A lane, and which page of its jobs.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct LanePage {
    /// The name of the lane as JSON: a string, or an array of strings, integers, booleans and nulls.
    #[param(example = "[\"tenant\", 7, null]")]
    lane: String,
    /// Only ids below this one: `next` of the previous page.
    before: Option<i64>,
    /// Jobs of a page: 1 to 1,000, default 50.
    #[param(minimum = 1, maximum = 1000)]
    #[serde(default, deserialize_with = "page_limit")]
    limit: Option<u32>,
}

/// The current job of a lane.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LaneCurrent {
    /// The id of the job that was claimed last; null: none was claimed, it was forgotten with its history, or the caller may not see
    /// whether a job has this lane.
    id: Option<i64>,
    /// That job; null: there is none, its kind keeps no history, or the caller may not see it.
    job: Option<JobLine>,
}

/// Shows the current job of a lane: the one that was claimed last.
#[utoipa::path(get, path = "/lanes/current", tag = "lanes", params(LaneName), responses((status = 200, description = "The current job", body = LaneCurrent), ErrorResponses))]
pub(crate) async fn show_current(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Query(name): Query<LaneName>,
) -> Result<Json<LaneCurrent>, Problem> {
    caller.check(Permission::View)?;
    let redact = caller.needs_redaction();
    let current = pitwheel.lane_current(&Lane::from_json(&name.lane)?).await?;
    // Of a job without history it is not known whether it is redacted.
    let is_shown = |job: Option<&JobSummary>| !redact || job.is_some_and(|job| !job.redacted);
    let current = current.filter(|current| is_shown(current.job.as_ref()));
    let id = current.as_ref().map(|current| current.id);
    let job = current.and_then(|current| current.job);
    Ok(Json(LaneCurrent { id, job: job.map(|job| JobLine::new(job, redact)) }))
}

/// Lists the jobs of a lane, live and finished, newest first, without their payloads; those of redacted kinds only for callers who may
/// see lanes. For others, a page is chosen from at most 20,000 jobs of the lane, and the list ends if they do not fill it.
#[utoipa::path(get, path = "/lanes/jobs", tag = "lanes", params(LanePage), responses((status = 200, description = "One page of jobs", body = JobPage), ErrorResponses))]
pub(crate) async fn list_lane_jobs(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Query(page): Query<LanePage>,
) -> Result<Json<JobPage>, Problem> {
    caller.check(Permission::View)?;
    let lane = Lane::from_json(&page.lane)?;
    let redact = caller.needs_redaction();
    // Jobs of redacted kinds are left out: they would tell that the lane exists.
    let filter =
        LaneFilter { without_redacted: redact, before: page.before, limit: page.limit.unwrap_or(0) as usize };
    Ok(Json(JobPage::new(pitwheel.lane_jobs(&lane, &filter).await?, redact)))
}
