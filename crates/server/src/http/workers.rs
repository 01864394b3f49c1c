//! Workers over HTTP.

use axum::Json;
use axum::extract::State;
use pitwheel::{Pitwheel, WorkerCommand};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::auth::caller::{Caller, Permission};
use crate::http::extract::{Path, Query, page_limit};
use crate::http::responses::ErrorResponses;
use crate::problem::Problem;
use crate::schemas::Order;
use crate::views::Worker;

/// Which workers, and which page of them.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct WorkerQuery {
    /// Whether to include workers that ended, or were declared dead, within the last day.
    #[serde(default)]
    dead: bool,
    /// Only ids below this one: `next` of the previous page.
    before: Option<i64>,
    /// Workers of a page: 1 to 1,000, default 50.
    #[param(minimum = 1, maximum = 1000)]
    #[serde(default, deserialize_with = "page_limit")]
    limit: Option<u32>,
}

/// One page of workers, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WorkerPage {
    workers: Vec<Worker>,
    /// Pass this as `before` to get the next page; null: this is the last page.
    next: Option<i64>,
}

/// Lists workers, newest first. Every stream of a remote worker is a worker of its own.
#[utoipa::path(get, path = "/workers", tag = "workers", params(WorkerQuery),
    responses((status = 200, description = "One page of workers", body = WorkerPage), ErrorResponses))]
pub(crate) async fn list_workers(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Query(query): Query<WorkerQuery>,
) -> Result<Json<WorkerPage>, Problem> {
    caller.check(Permission::View)?;
    let limit = query.limit.unwrap_or(50) as usize;
    let workers = pitwheel.workers(query.before, limit, query.dead).await?;
    let next = workers.last().filter(|_| workers.len() == limit).map(|worker| worker.id);
    Ok(Json(WorkerPage { workers: workers.into_iter().map(Worker::from).collect(), next }))
}

/// A command that was given to a worker.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WorkerOrder {
    id: i64,
    /// `quiet`, `drain` or `resume`.
    #[schema(value_type = Order, example = "quiet")]
    order: &'static str,
}

async fn command(
    pitwheel: &Pitwheel,
    caller: &Caller,
    id: i64,
    (command, order): (WorkerCommand, &'static str),
) -> Result<Json<WorkerOrder>, Problem> {
    caller.check(Permission::Operate)?;
    if pitwheel.acting_as(caller.name()).command_worker(id, command).await? {
        return Ok(Json(WorkerOrder { id, order }));
    }
    Err(Problem::not_found(format!("worker {id} is not running, or is already draining")))
}

/// Sends a worker no more jobs. Running jobs continue.
#[utoipa::path(post, path = "/workers/{id}/quiet", tag = "workers", params(("id" = i64, Path, description = "The id of the worker")),
    responses((status = 200, description = "The command was given", body = WorkerOrder), ErrorResponses))]
pub(crate) async fn quiet_worker(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Path(id): Path<i64>,
) -> Result<Json<WorkerOrder>, Problem> {
    command(&pitwheel, &caller, id, (WorkerCommand::Quiet, "quiet")).await
}

/// Sends a worker no more jobs and asks it to exit when its running jobs have ended. The worker receives this with its
/// next heartbeat.
#[utoipa::path(post, path = "/workers/{id}/drain", tag = "workers", params(("id" = i64, Path, description = "The id of the worker")),
    responses((status = 200, description = "The command was given", body = WorkerOrder), ErrorResponses))]
pub(crate) async fn drain_worker(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Path(id): Path<i64>,
) -> Result<Json<WorkerOrder>, Problem> {
    command(&pitwheel, &caller, id, (WorkerCommand::Drain, "drain")).await
}

/// Sends jobs to a quiet worker again.
#[utoipa::path(post, path = "/workers/{id}/resume", tag = "workers", params(("id" = i64, Path, description = "The id of the worker")),
    responses((status = 200, description = "The command was given", body = WorkerOrder), ErrorResponses))]
pub(crate) async fn resume_worker(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Path(id): Path<i64>,
) -> Result<Json<WorkerOrder>, Problem> {
    command(&pitwheel, &caller, id, (WorkerCommand::Resume, "resume")).await
}
