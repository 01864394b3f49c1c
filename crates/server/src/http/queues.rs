//! Queues over HTTP.

use axum::Json;
use axum::extract::State;
use pitwheel::Pitwheel;
use serde::Serialize;
use utoipa::ToSchema;

use crate::auth::caller::{Caller, Permission};
use crate::http::extract::Path;
use crate::http::responses::ErrorResponses;
use crate::problem::Problem;
use crate::views::Queue;

/// The queues that have live jobs or are paused.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct QueueList {
    queues: Vec<Queue>,
}

/// Lists the queues that have live jobs or are paused, at most 1,000: those first that are paused or that workers take. Counts stop at
/// 10,000 jobs, over all queues.
#[utoipa::path(get, path = "/queues", tag = "queues", responses((status = 200, description = "The queues", body = QueueList), ErrorResponses))]
pub(crate) async fn list_queues(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
) -> Result<Json<QueueList>, Problem> {
    caller.check(Permission::View)?;
    let queues = pitwheel.queues().await?.into_iter().map(Queue::from).collect();
    Ok(Json(QueueList { queues }))
}

/// A queue, and whether it is paused now.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct QueuePause {
    #[schema(pattern = "^([*]|[A-Za-z0-9][A-Za-z0-9_.:/-]{0,62})$")]
    name: String,
    paused: bool,
}

/// The name in the path; `*` stands for all queues.
fn queue(name: &str) -> Option<&str> {
    (name != "*").then_some(name)
}

/// Pauses a queue, or all queues (`*`), on every node: no jobs are claimed from it. Running jobs continue.
#[utoipa::path(post, path = "/queues/{name}/pause", tag = "queues", params(("name" = String, Path, description = "The queue; `*` stands for all queues", pattern = "^([*]|[A-Za-z0-9][A-Za-z0-9_.:/-]{0,62})$")),
    responses((status = 200, description = "The queue", body = QueuePause), ErrorResponses))]
pub(crate) async fn pause_queue(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<Json<QueuePause>, Problem> {
    caller.check(Permission::Operate)?;
    pitwheel.acting_as(caller.name()).pause(queue(&name)).await?;
    Ok(Json(QueuePause { name, paused: true }))
}

/// Resumes a queue. `*` ends a pause of all queues; queues that were paused by name stay paused.
#[utoipa::path(post, path = "/queues/{name}/resume", tag = "queues", params(("name" = String, Path, description = "The queue; `*` stands for all queues", pattern = "^([*]|[A-Za-z0-9][A-Za-z0-9_.:/-]{0,62})$")),
    responses((status = 200, description = "The queue", body = QueuePause), ErrorResponses))]
pub(crate) async fn resume_queue(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<Json<QueuePause>, Problem> {
    caller.check(Permission::Operate)?;
    pitwheel.acting_as(caller.name()).resume(queue(&name)).await?;
    Ok(Json(QueuePause { name, paused: false }))
}
