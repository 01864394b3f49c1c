//! Workers over HTTP.

use axum::Json;
use axum::extract::State;
use pitwheel::{Pitwheel, WorkerCommand};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::auth::access::{Caller, Need};
use crate::http::extract::{Path, Query};
use crate::http::responses::Answer;
use crate::problem::Problem;
use crate::views::Worker;

/// Which page.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct Which {
    /// Those that ended in the last day, too.
    #[serde(default)]
    dead: bool,
    /// Only ids below this one: `next` of the page before.
    before: Option<i64>,
    /// How many, at most 1,000; 50 by default.
    limit: Option<u32>,
}

/// One page of workers, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Workers {
    workers: Vec<Worker>,
    /// What `before` must be for the next page; null: there is none.
    next: Option<i64>,
}

/// Lists workers, newest first. A remote worker has one line for each of its streams.
#[utoipa::path(get, path = "/workers", tag = "workers", params(Which),
    responses((status = 200, body = Workers), Answer))]
pub(crate) async fn list(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Query(which): Query<Which>,
) -> Result<Json<Workers>, Problem> {
    caller.must(Need::See)?;
    let limit = which.limit.unwrap_or(50).max(1) as usize;
    let workers = pitwheel.workers(which.before, limit, which.dead).await?;
    let next = workers.last().filter(|_| workers.len() == limit).map(|worker| worker.id);
    Ok(Json(Workers { workers: workers.into_iter().map(Worker::from).collect(), next }))
}

/// What a worker was told.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Told {
    id: i64,
    #[schema(example = "quiet")]
    order: &'static str,
}

async fn tell(
    pitwheel: &Pitwheel,
    caller: &Caller,
    id: i64,
    order: (WorkerCommand, &'static str),
) -> Result<Json<Told>, Problem> {
    caller.must(Need::Operate)?;
    let taken = pitwheel.acting_as(&caller.name).command_worker(id, order.0).await?;
    let missing = || Problem::missing(format!("worker {id} does not live, or drains already"));
    taken.then_some(Json(Told { id, order: order.1 })).ok_or_else(missing)
}

/// Gives a worker nothing more; what it runs goes on.
#[utoipa::path(post, path = "/workers/{id}/quiet", tag = "workers", params(("id" = i64, Path)),
    responses((status = 200, body = Told), Answer))]
pub(crate) async fn quiet(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Path(id): Path<i64>,
) -> Result<Json<Told>, Problem> {
    tell(&pitwheel, &caller, id, (WorkerCommand::Quiet, "quiet")).await
}

/// Gives a worker nothing more, and tells it to end when what it runs has ended. It hears of it with its next heartbeat.
#[utoipa::path(post, path = "/workers/{id}/drain", tag = "workers", params(("id" = i64, Path)),
    responses((status = 200, body = Told), Answer))]
pub(crate) async fn drain(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Path(id): Path<i64>,
) -> Result<Json<Told>, Problem> {
    tell(&pitwheel, &caller, id, (WorkerCommand::Drain, "drain")).await
}

/// Gives a quiet worker jobs again.
#[utoipa::path(post, path = "/workers/{id}/resume", tag = "workers", params(("id" = i64, Path)),
    responses((status = 200, body = Told), Answer))]
pub(crate) async fn resume(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Path(id): Path<i64>,
) -> Result<Json<Told>, Problem> {
    tell(&pitwheel, &caller, id, (WorkerCommand::Resume, "resume")).await
}
