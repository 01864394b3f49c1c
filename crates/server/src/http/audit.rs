//! The audit log over HTTP.

use axum::Json;
use axum::extract::State;
use pitwheel::Pitwheel;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::auth::caller::{Caller, Permission};
use crate::http::extract::{Query, page_limit};
use crate::http::responses::ErrorResponses;
use crate::problem::Problem;
use crate::views::AuditLine;

/// Which page of the audit log.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct AuditQuery {
    /// Only ids below this one: `next` of the previous page.
    before: Option<i64>,
    /// Lines of a page: 1 to 1,000, default 50.
    #[param(minimum = 1, maximum = 1000)]
    #[serde(default, deserialize_with = "page_limit")]
    limit: Option<u32>,
}

/// One page of the audit log, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AuditPage {
    changes: Vec<AuditLine>,
    /// Pass this as `before` to get the next page; null: this is the last page.
    next: Option<i64>,
}

/// Lists who changed what, newest first. Lines are kept for one year.
#[utoipa::path(get, path = "/audit", tag = "admin", params(AuditQuery),
    responses((status = 200, description = "One page of the audit log", body = AuditPage), ErrorResponses))]
pub(crate) async fn list_audit(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Query(query): Query<AuditQuery>,
) -> Result<Json<AuditPage>, Problem> {
    caller.check(Permission::Administer)?;
    let limit = query.limit.unwrap_or(50) as usize;
    let changes = pitwheel.audit(query.before, limit).await?;
    let next = changes.last().filter(|_| changes.len() == limit).map(|change| change.id);
    Ok(Json(AuditPage { changes: changes.into_iter().map(AuditLine::from).collect(), next }))
}
