//! Tokens and the audit log over HTTP.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use pitwheel::Pitwheel;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::auth::access::{Caller, Need};
use crate::http::extract::{Body, Path, Query};
use crate::http::jobs::moment;
use crate::http::responses::Answer;
use crate::problem::Problem;
use crate::views::{AuditLine, TokenLine};

/// The tokens that were not revoked.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Tokens {
    tokens: Vec<TokenLine>,
}

/// Lists the tokens that were not revoked, without their secrets.
#[utoipa::path(get, path = "/tokens", tag = "admin", responses((status = 200, body = Tokens), Answer))]
pub(crate) async fn tokens(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
) -> Result<Json<Tokens>, Problem> {
    caller.must(Need::Administer)?;
    Ok(Json(Tokens { tokens: pitwheel.tokens().await?.into_iter().map(TokenLine::from).collect() }))
}

/// A token to make.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewToken {
    /// What people call it.
    #[schema(example = "ci")]
    name: String,
    /// `viewer`, `operator`, `admin`, `worker` or `producer`.
    #[schema(example = "producer")]
    role: String,
    /// Until when it is good (RFC 3339); until it is revoked, when this is left out.
    expires_at: Option<String>,
}

/// A token that was made.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Made {
    #[serde(flatten)]
    token: TokenLine,
    /// Shown this once, and kept nowhere.
    secret: String,
}

/// Makes a token. Its secret is shown this once.
#[utoipa::path(post, path = "/tokens", tag = "admin", request_body = NewToken,
    responses((status = 201, body = Made), Answer))]
pub(crate) async fn create(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Body(token): Body<NewToken>,
) -> Result<(StatusCode, Json<Made>), Problem> {
    caller.must(Need::Administer)?;
    let expires_at = token.expires_at.as_deref().map(|at| moment("expires_at", at)).transpose()?;
    let acting = pitwheel.acting_as(&caller.name);
    let (token, secret) = acting.create_token(&token.name, token.role.parse()?, expires_at).await?;
    Ok((StatusCode::CREATED, Json(Made { token: token.into(), secret })))
}

/// Revokes a token: every node refuses it within two seconds and ends its streams.
#[utoipa::path(delete, path = "/tokens/{name}", tag = "admin", params(("name" = String, Path)),
    responses((status = 204), Answer))]
pub(crate) async fn revoke(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<StatusCode, Problem> {
    caller.must(Need::Administer)?;
    let revoked = pitwheel.acting_as(&caller.name).revoke_token(&name).await?;
    revoked
        .then_some(StatusCode::NO_CONTENT)
        .ok_or_else(|| Problem::missing(format!("no token is called `{name}`")))
}

/// Which page.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct Which {
    /// Only ids below this one: `next` of the page before.
    before: Option<i64>,
    /// How many, at most 1,000; 50 by default.
    limit: Option<u32>,
}

/// One page of the audit log, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Audit {
    changes: Vec<AuditLine>,
    /// What `before` must be for the next page; null: there is none.
    next: Option<i64>,
}

/// Lists who changed what, newest first. Kept for a year.
#[utoipa::path(get, path = "/audit", tag = "admin", params(Which), responses((status = 200, body = Audit), Answer))]
pub(crate) async fn audit(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Query(which): Query<Which>,
) -> Result<Json<Audit>, Problem> {
    caller.must(Need::Administer)?;
    let limit = which.limit.unwrap_or(50).max(1) as usize;
    let changes = pitwheel.audit(which.before, limit).await?;
    let next = changes.last().filter(|_| changes.len() == limit).map(|change| change.id);
    Ok(Json(Audit { changes: changes.into_iter().map(AuditLine::from).collect(), next }))
}
