//! Kinds over HTTP.

use axum::Json;
use axum::extract::State;
use pitwheel::Pitwheel;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::auth::caller::{Caller, Permission};
use crate::http::extract::{Body, Path};
use crate::http::responses::{BodyErrorResponses, ErrorResponses};
use crate::problem::Problem;
use crate::views::Kind;

/// The kinds that have settings or are run by a worker.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct KindList {
    kinds: Vec<Kind>,
}

/// Lists the kinds that have settings or are run by a worker.
#[utoipa::path(get, path = "/kinds", tag = "kinds", responses((status = 200, description = "The kinds", body = KindList), ErrorResponses))]
pub(crate) async fn list_kinds(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
) -> Result<Json<KindList>, Problem> {
    caller.check(Permission::View)?;
    Ok(Json(KindList { kinds: pitwheel.kinds().await?.into_iter().map(Kind::from).collect() }))
}

/// The settings of a kind.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct KindSettings {
    /// Whether keys, lanes, notes, payloads, metadata, results and error messages are hidden from callers who may not change jobs.
    redacted: bool,
}

/// Changes the settings of a kind.
#[utoipa::path(put, path = "/kinds/{name}", tag = "kinds", params(("name" = String, Path, description = "The kind", pattern = "^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,62}$")),
    request_body = KindSettings, responses((status = 200, description = "The kinds", body = KindList), ErrorResponses, BodyErrorResponses))]
pub(crate) async fn change_kind(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Path(name): Path<String>,
    Body(settings): Body<KindSettings>,
) -> Result<Json<KindList>, Problem> {
    caller.check(Permission::Administer)?;
    pitwheel.acting_as(caller.name()).redact(&name, settings.redacted).await?;
    list_kinds(State(pitwheel), caller).await
}
