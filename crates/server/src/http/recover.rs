//! Recovering a job over HTTP.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use pitwheel::Pitwheel;

use crate::auth::caller::{Caller, Permission};
use crate::http::extract::Path;
use crate::http::responses::ErrorResponses;
use crate::problem::Problem;
use crate::views::JobInFull;

/// For how long the lease of a worker must not have been renewed before its jobs can be recovered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StaleAfter(pub(crate) Duration);

/// Lets a running job wait again whose worker has not renewed its lease for the stale timeout of this node: due now, with all its
/// attempts. Its former worker can write nothing more. Nodes and workers find such jobs by themselves much sooner.
#[utoipa::path(post, path = "/jobs/{id}/recover", tag = "jobs", params(("id" = i64, Path, description = "The id of the job")),
    responses(
        (status = 200, description = "The job, which waits again", body = JobInFull),
        (status = 409, description = "The job is not running, or its worker has renewed its lease. Nothing was changed.", body = Problem, content_type = "application/problem+json"),
        ErrorResponses
    ))]
pub(crate) async fn recover_job(
    State(pitwheel): State<Pitwheel>,
    State(StaleAfter(stale)): State<StaleAfter>,
    caller: Caller,
    Path(id): Path<i64>,
) -> Result<Json<JobInFull>, Problem> {
    caller.check(Permission::Operate)?;
    pitwheel.acting_as(caller.name()).recover(id, stale).await?;
    Ok(Json(JobInFull::new(pitwheel.job(id).await?, caller.needs_redaction())))
}
