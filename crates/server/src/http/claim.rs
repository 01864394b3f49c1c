//! Claiming a job for a worker over HTTP.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use pitwheel::Pitwheel;
use serde::Deserialize;
use utoipa::ToSchema;

use crate::auth::caller::{Caller, Permission};
use crate::dispatch::node::Node;
use crate::http::extract::{Body, Path};
use crate::http::responses::{BodyErrorResponses, ErrorResponses};
use crate::problem::Problem;
use crate::views::JobInFull;

/// Who gets the job.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClaimFor {
    /// The id of a worker whose stream is open on this node.
    worker_id: i64,
}

/// Claims a job for a worker, also before its time, and sends it to the worker. Of several callers one gets it. The worker must have a
/// stream on this node, a free slot, and a handler for the kind of the job.
#[utoipa::path(post, path = "/jobs/{id}/claim", tag = "jobs", params(("id" = i64, Path, description = "The id of the job")), request_body = ClaimFor,
    responses(
        (status = 200, description = "The job, which the worker runs", body = JobInFull),
        (status = 409, description = "Another worker has the job, it is finished, it has no attempts left, another job of its lane comes first, its queue is paused, or the worker cannot take it. Nothing was changed.", body = Problem, content_type = "application/problem+json"),
        ErrorResponses, BodyErrorResponses
    ))]
pub(crate) async fn claim_job(
    State(pitwheel): State<Pitwheel>,
    State(node): State<Arc<Node>>,
    caller: Caller,
    Path(id): Path<i64>,
    Body(claim): Body<ClaimFor>,
) -> Result<Json<JobInFull>, Problem> {
    caller.check(Permission::Operate)?;
    let claimed = node.claim_job(claim.worker_id, id, Some(caller.name().to_owned())).await?;
    claimed.map_err(|why| Problem::not_claimed(format!("job {id} cannot be claimed: {why}")))?;
    Ok(Json(JobInFull::new(pitwheel.job(id).await?, caller.needs_redaction())))
}
