//! Queues and kinds over HTTP.

use axum::Json;
use axum::extract::State;
use pitwheel::Pitwheel;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::auth::access::{Caller, Need};
use crate::http::extract::{Body, Path};
use crate::http::responses::Answer;
use crate::problem::Problem;
use crate::views::{Kind, Queue};

/// The queues that have live jobs or are paused.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Queues {
    queues: Vec<Queue>,
}

/// Lists the queues that have live jobs or are paused. Counts stop at 10,000 jobs, shared by all queues.
#[utoipa::path(get, path = "/queues", tag = "queues", responses((status = 200, body = Queues), Answer))]
pub(crate) async fn list(State(pitwheel): State<Pitwheel>, caller: Caller) -> Result<Json<Queues>, Problem> {
    caller.must(Need::See)?;
    let queues = pitwheel.queues().await?.into_iter().map(Queue::from).collect();
    Ok(Json(Queues { queues }))
}

/// Whether a queue is paused now.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Paused {
    name: String,
    paused: bool,
}

/// `*` is all queues.
fn named(name: &str) -> Option<&str> {
    (name != "*").then_some(name)
}

/// Stops claims from a queue (`*`: from all), on every node. What runs goes on.
#[utoipa::path(post, path = "/queues/{name}/pause", tag = "queues", params(("name" = String, Path)),
    responses((status = 200, body = Paused), Answer))]
pub(crate) async fn pause(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<Json<Paused>, Problem> {
    caller.must(Need::Operate)?;
    pitwheel.acting_as(&caller.name).pause(named(&name)).await?;
    Ok(Json(Paused { name, paused: true }))
}

/// Lets a queue be claimed from again; `*` ends a pause of all.
#[utoipa::path(post, path = "/queues/{name}/resume", tag = "queues", params(("name" = String, Path)),
    responses((status = 200, body = Paused), Answer))]
pub(crate) async fn resume(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<Json<Paused>, Problem> {
    caller.must(Need::Operate)?;
    pitwheel.acting_as(&caller.name).resume(named(&name)).await?;
    Ok(Json(Paused { name, paused: false }))
}

/// The kinds about which something was said, and those that living workers run.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Kinds {
    kinds: Vec<Kind>,
}

/// Lists the kinds about which something was said, and those that living workers run.
#[utoipa::path(get, path = "/kinds", tag = "kinds", responses((status = 200, body = Kinds), Answer))]
pub(crate) async fn kinds(State(pitwheel): State<Pitwheel>, caller: Caller) -> Result<Json<Kinds>, Problem> {
    caller.must(Need::See)?;
    Ok(Json(Kinds { kinds: pitwheel.kinds().await?.into_iter().map(Kind::from).collect() }))
}

/// What is said about a kind.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Said {
    /// Whether payloads, metadata and results are kept from those who may only look.
    redacted: bool,
}

/// Says whether payloads, metadata and results of a kind are kept from those who may only look.
#[utoipa::path(put, path = "/kinds/{name}", tag = "kinds", params(("name" = String, Path)), request_body = Said,
    responses((status = 200, body = Kinds), Answer))]
pub(crate) async fn say(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Path(name): Path<String>,
    Body(said): Body<Said>,
) -> Result<Json<Kinds>, Problem> {
    caller.must(Need::Administer)?;
    pitwheel.acting_as(&caller.name).redact(&name, said.redacted).await?;
    kinds(State(pitwheel), caller).await
}
