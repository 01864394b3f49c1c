//! Sync requests over HTTP.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use pitwheel::Role;
use pitwheel_server::{Body, Caller, ErrorResponses, Problem};

use crate::csv::CsvOptions;
use crate::http::problem::problem;
use crate::http::views::JobView;
use crate::ingest::Ingest;
use crate::lane::Lane;

/// Reads the source of a lane again (method `api`), or computes it (method `computed`): one entry type, or a whole module.
#[utoipa::path(post, path = "/api/v1/ingest/syncs", request_body = Lane,
    responses((status = 202, body = JobView), ErrorResponses))]
pub(crate) async fn request_ingest_sync(
    State(ingest): State<Ingest>,
    caller: Caller,
    Body(lane): Body<Lane>,
) -> Result<(StatusCode, Json<JobView>), Problem> {
    caller.require(Role::Operator)?;
    let id = ingest.sync(&lane, &CsvOptions::default(), caller.name()).await.map_err(problem)?;
    Ok((StatusCode::ACCEPTED, Json(ingest.job(id).await.map_err(problem)?.into())))
}
