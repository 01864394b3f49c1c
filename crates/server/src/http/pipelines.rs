//! Pipelines over HTTP.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use pitwheel::{PipelineFilter, Pitwheel};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::auth::caller::{Caller, Permission};
use crate::http::extract::{Body, Path, Query, page_limit};
use crate::http::responses::{BodyErrorResponses, ErrorResponses};
use crate::pipeline_views::{PipelineInFull, PipelineLine, PipelineToCreate};
use crate::problem::Problem;
use crate::schemas;

/// Which pipelines, and which page of them.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct PipelineQuery {
    /// Only pipelines with this name.
    #[param(pattern = "^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,62}$")]
    name: Option<String>,
    /// Only pipelines in this state.
    #[param(value_type = Option<schemas::PipelineState>)]
    state: Option<String>,
    /// Only ids below this one: `next` of the previous page.
    before: Option<i64>,
    /// Pipelines of a page: 1 to 1,000, default 50.
    #[param(minimum = 1, maximum = 1000)]
    #[serde(default, deserialize_with = "page_limit")]
    limit: Option<u32>,
}

/// One page of a list of pipelines.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PipelinePage {
    /// Newest first. A page may have fewer than `limit`, even none, although more pages follow: it scans a limited number of
    /// rows.
    pipelines: Vec<PipelineLine>,
    /// Pass this as `before` to get the next page; null: this is the last page.
    next: Option<i64>,
}

/// Lists pipelines, newest first, without their steps.
#[utoipa::path(get, path = "/pipelines", tag = "pipelines", params(PipelineQuery), responses((status = 200, description = "One page of pipelines", body = PipelinePage), ErrorResponses))]
pub(crate) async fn list_pipelines(
    pitwheel: State<Pitwheel>,
    caller: Caller,
    Query(query): Query<PipelineQuery>,
) -> Result<Json<PipelinePage>, Problem> {
    caller.check(Permission::View)?;
    let filter = PipelineFilter {
        name: query.name,
        state: query.state.map(|state| state.parse()).transpose()?,
        before: query.before,
        limit: query.limit.unwrap_or(0) as usize,
    };
    let page = pitwheel.pipelines().list(&filter).await?;
    Ok(Json(PipelinePage {
        pipelines: page.pipelines.into_iter().map(PipelineLine::from).collect(),
        next: page.next,
    }))
}

/// Creates a pipeline, and enqueues the jobs of its first steps. After an error it may exist.
#[utoipa::path(post, path = "/pipelines", tag = "pipelines", request_body = PipelineToCreate,
    responses((status = 201, description = "It was created", body = PipelineInFull), ErrorResponses, BodyErrorResponses))]
pub(crate) async fn create_pipeline(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Body(new): Body<PipelineToCreate>,
) -> Result<(StatusCode, Json<PipelineInFull>), Problem> {
    caller.check(Permission::Enqueue)?;
    let pipelines = pitwheel.pipelines();
    let id = pipelines.create(new.into_new()?).await?;
    let detail = pipelines.get(id).await?;
    Ok((StatusCode::CREATED, Json(PipelineInFull::new(detail, caller.needs_redaction()))))
}

/// Shows one pipeline with its steps, and up to 1 MiB of their results.
#[utoipa::path(get, path = "/pipelines/{id}", tag = "pipelines", params(("id" = i64, Path, description = "The id of the pipeline")),
    responses((status = 200, description = "The pipeline", body = PipelineInFull), ErrorResponses))]
pub(crate) async fn show_pipeline(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Path(id): Path<i64>,
) -> Result<Json<PipelineInFull>, Problem> {
    caller.check(Permission::ViewJob)?;
    Ok(Json(PipelineInFull::new(pitwheel.pipelines().get(id).await?, caller.needs_redaction())))
}

/// What became of a change of a pipeline.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PipelineChanged {
    /// False: nothing was to be done, and nothing was changed.
    changed: bool,
    pipeline: PipelineLine,
}

/// Cancels a pipeline: steps that wait will not run, waiting jobs are cancelled, and the handlers of running jobs are asked to stop.
#[utoipa::path(post, path = "/pipelines/{id}/cancel", tag = "pipelines", params(("id" = i64, Path, description = "The id of the pipeline")),
    responses((status = 200, description = "What became of it; `changed` is false if it had ended", body = PipelineChanged), ErrorResponses))]
pub(crate) async fn cancel_pipeline(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Path(id): Path<i64>,
) -> Result<Json<PipelineChanged>, Problem> {
    caller.check(Permission::Operate)?;
    let pipelines = pitwheel.acting_as(caller.name()).pipelines();
    let changed = pipelines.cancel(id).await?;
    Ok(Json(PipelineChanged { changed, pipeline: pipelines.summary(id).await?.into() }))
}

/// Runs the steps again that are dead, cancelled or skipped, each after those that it depends on.
#[utoipa::path(post, path = "/pipelines/{id}/retry", tag = "pipelines", params(("id" = i64, Path, description = "The id of the pipeline")),
    responses((status = 200, description = "What became of it; `changed` is false if there are no such steps", body = PipelineChanged), ErrorResponses))]
pub(crate) async fn retry_pipeline(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Path(id): Path<i64>,
) -> Result<Json<PipelineChanged>, Problem> {
    caller.check(Permission::Operate)?;
    let pipelines = pitwheel.acting_as(caller.name()).pipelines();
    let changed = pipelines.retry(id).await?;
    Ok(Json(PipelineChanged { changed, pipeline: pipelines.summary(id).await?.into() }))
}
