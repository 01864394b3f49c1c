//! Lanes over HTTP.

use axum::Json;
use axum::extract::State;
use pitwheel::Role;
use pitwheel_server::{Caller, ErrorResponses, Problem, Query};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::http::problem::problem;
use crate::http::views::LaneView;
use crate::ingest::{Ingest, PAGE_MAX};
use crate::lane::{LaneFilter, Method, Target};

/// One page of lanes.
#[derive(Debug, Deserialize, IntoParams)]
pub(crate) struct LanesQuery {
    /// Only ids above this one: the `next` of the page before.
    after: Option<i64>,
    /// At most this many, up to 1000. Default: 50.
    limit: Option<i64>,
    /// Only this module.
    module: Option<String>,
    /// Only this entry type.
    entry_type: Option<String>,
    /// Only this target.
    target: Option<Target>,
    /// Only this method.
    method: Option<Method>,
    /// Only this year.
    year: Option<i16>,
}

/// One page of lanes.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = IngestLanePage)]
pub(crate) struct LanePage {
    lanes: Vec<LaneView>,
    /// The `after` of the next page; null after the last page.
    next: Option<i64>,
}

/// Lists lanes with their current versions.
#[utoipa::path(get, path = "/api/v1/ingest/lanes", params(LanesQuery),
    responses((status = 200, body = LanePage), ErrorResponses))]
pub(crate) async fn list_ingest_lanes(
    State(ingest): State<Ingest>,
    caller: Caller,
    Query(query): Query<LanesQuery>,
) -> Result<Json<LanePage>, Problem> {
    caller.require(Role::Viewer)?;
    let (after, limit) = (query.after.unwrap_or_default(), query.limit.unwrap_or(50).clamp(1, PAGE_MAX));
    let LanesQuery { module, entry_type, target, method, year, .. } = query;
    let filter = LaneFilter { module, entry_type, target, method, year };
    let found = ingest.lanes(&filter, after, limit).await.map_err(problem)?;
    let is_full = usize::try_from(limit).is_ok_and(|limit| found.len() == limit);
    let next = found.last().filter(|_| is_full).map(|lane| lane.id);
    Ok(Json(LanePage { lanes: found.into_iter().map(LaneView::from).collect(), next }))
}
