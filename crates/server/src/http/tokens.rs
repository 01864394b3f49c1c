//! Tokens over HTTP.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use pitwheel::Pitwheel;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::auth::caller::{Caller, Permission};
use crate::http::extract::{Body, Path};
use crate::http::responses::{BodyErrorResponses, ErrorResponses};
use crate::problem::Problem;
use crate::schemas::Role;
use crate::views::{TokenLine, parse_time};

/// The tokens that were not revoked.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TokenList {
    tokens: Vec<TokenLine>,
}

/// Lists the tokens that were not revoked, without their secrets.
#[utoipa::path(get, path = "/tokens", tag = "admin", responses((status = 200, description = "The tokens", body = TokenList), ErrorResponses))]
pub(crate) async fn list_tokens(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
) -> Result<Json<TokenList>, Problem> {
    caller.check(Permission::Administer)?;
    Ok(Json(TokenList { tokens: pitwheel.tokens().await?.into_iter().map(TokenLine::from).collect() }))
}

/// A token to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewToken {
    /// The name that people use for it. Only one valid token can have a name.
    #[schema(example = "ci", pattern = "^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,62}$")]
    name: String,
    /// `viewer`, `operator`, `admin`, `worker` or `producer`.
    #[schema(value_type = Role, example = "producer")]
    role: String,
    /// When it expires (RFC 3339). Without this it is valid until it is revoked.
    #[schema(format = DateTime)]
    expires_at: Option<String>,
}

/// A token that was created.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CreatedToken {
    #[serde(flatten)]
    token: TokenLine,
    /// The secret. It is shown only in this response: the server stores its hash.
    secret: String,
}

/// Creates a token. Only this response shows its secret.
#[utoipa::path(post, path = "/tokens", tag = "admin", request_body = NewToken,
    responses((status = 201, description = "The token was created", body = CreatedToken), ErrorResponses, BodyErrorResponses))]
pub(crate) async fn create_token(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Body(token): Body<NewToken>,
) -> Result<(StatusCode, Json<CreatedToken>), Problem> {
    caller.check(Permission::Administer)?;
    let expires_at = token.expires_at.as_deref().map(|at| parse_time("expires_at", at)).transpose()?;
    let acting = pitwheel.acting_as(caller.name());
    let (token, secret) = acting.create_token(&token.name, token.role.parse()?, expires_at).await?;
    Ok((StatusCode::CREATED, Json(CreatedToken { token: token.into(), secret })))
}

/// Revokes a token. Within two seconds every node refuses it and ends its streams.
#[utoipa::path(delete, path = "/tokens/{name}", tag = "admin", params(("name" = String, Path, description = "The name of the token", pattern = "^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,62}$")),
    responses((status = 204, description = "The token was revoked"), ErrorResponses))]
pub(crate) async fn revoke_token(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<StatusCode, Problem> {
    caller.check(Permission::Administer)?;
    if pitwheel.acting_as(caller.name()).revoke_token(&name).await? {
        return Ok(StatusCode::NO_CONTENT);
    }
    Err(Problem::not_found(format!("there is no token `{name}`: GET /api/v1/tokens lists the tokens")))
}
