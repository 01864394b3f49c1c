//! The callback of hubs: verification of intent, denials, and pushed content. It needs no token of the API; its path holds a secret.

use std::time::Instant;

use axum::extract::{FromRequest, FromRequestParts, Query, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use pitwheel_server::{Path, Problem};
use serde::Deserialize;
use url::Url;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::error::Error;
use crate::feeds::Feeds;
use crate::http::problem::problem;
use crate::parse::{self, Article, Document};
use crate::store::websub::Callback;
use crate::store::{articles, sources};
use crate::websub::bodies::{Bodies, PushedBody};
use crate::websub::signature::{Signature, SignatureError};

/// The paths that hubs call. They need no token.
pub const PUBLIC_PREFIX: &str = "/websub/";
/// The shortest and the longest lease that are believed.
const LEASE_SECONDS: std::ops::RangeInclusive<i64> = 60..=366 * 24 * 3600;

/// What the callback needs.
#[derive(Clone)]
pub(crate) struct CallbackState {
    feeds: Feeds,
    bodies: Bodies,
}

/// The routes of the callback.
pub fn routes(feeds: &Feeds) -> OpenApiRouter {
    let state = CallbackState { feeds: feeds.clone(), bodies: Bodies::new() };
    OpenApiRouter::new().routes(routes!(verify_intent, take_push)).with_state(state)
}

/// The subscription whose secret stands in the path. There is none: 404.
pub(crate) struct Known {
    token: String,
    subscription: Callback,
}

impl FromRequestParts<CallbackState> for Known {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &CallbackState) -> Result<Known, Problem> {
        let Path(token) = Path::<String>::from_request_parts(parts, state).await?;
        let rows = state.feeds.rows(include_str!("../../sql/websub_by_token.sql"), &[&token]).await;
        let subscription = rows.map_err(problem)?.first().map(Callback::read);
        let subscription = subscription.ok_or_else(|| Problem::not_found("there is no such subscription"))?;
        Ok(Known { token, subscription })
    }
}

/// Content that the hub of a subscription has signed. A caller who does not know the secret of the path, or sends no well-formed
/// signature, is refused before the body is read.
pub(crate) struct Push {
    subscription: Callback,
    content_type: Option<String>,
    body: PushedBody,
}

impl FromRequest<CallbackState> for Push {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &CallbackState) -> Result<Push, Problem> {
        let (mut parts, body) = request.into_parts();
        let Known { subscription, .. } = Known::from_request_parts(&mut parts, state).await?;
        let refused = |error: SignatureError| {
            tracing::warn!(source = subscription.source_id, %error, "refused content of a hub");
            Problem::forbidden(error.to_string())
        };
        let signature = Signature::parse(text(&parts.headers, "x-hub-signature")).map_err(refused)?;
        let body = state.bodies.read(body).await?;
        signature.verify(&subscription.secret, &body.bytes).map_err(refused)?;
        let content_type = text(&parts.headers, CONTENT_TYPE.as_str()).map(str::to_owned);
        Ok(Push { subscription, content_type, body })
    }
}

/// The value of a header, if it is text.
fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// What a hub asks.
#[derive(Debug, Deserialize, IntoParams)]
pub(crate) struct Intent {
    /// `subscribe`, `unsubscribe` or `denied`.
    #[serde(rename = "hub.mode")]
    mode: String,
    /// The topic.
    #[serde(rename = "hub.topic")]
    topic: String,
    /// To be sent back.
    #[serde(rename = "hub.challenge")]
    challenge: Option<String>,
    /// For how long the subscription holds.
    #[serde(rename = "hub.lease_seconds")]
    lease_seconds: Option<i64>,
    /// Why it was denied.
    #[serde(rename = "hub.reason")]
    reason: Option<String>,
}

/// Confirms to a hub that a subscription, or its end, is wanted.
#[utoipa::path(get, path = "/websub/{token}", params(("token" = String, Path), Intent),
    responses((status = 200, description = "The challenge", body = String),
        (status = 404, description = "Not wanted")))]
pub(crate) async fn verify_intent(
    State(CallbackState { feeds, .. }): State<CallbackState>,
    Known { token, subscription }: Known,
    Query(intent): Query<Intent>,
) -> Result<String, Problem> {
    let not_wanted = || Problem::not_found("this is not wanted");
    if subscription.topic_url != intent.topic {
        return Err(not_wanted());
    }
    let challenge = intent.challenge.unwrap_or_default();
    let changed = match intent.mode.as_str() {
        "subscribe" => {
            let lease = intent.lease_seconds.filter(|lease| *lease > 0).ok_or_else(not_wanted)?;
            let lease = lease.clamp(*LEASE_SECONDS.start(), *LEASE_SECONDS.end());
            let lease = lease as f64;
            feeds.rows(include_str!("../../sql/websub_confirmed.sql"), &[&token, &lease]).await
        }
        "unsubscribe" => feeds.rows(include_str!("../../sql/websub_ended.sql"), &[&token]).await,
        "denied" => {
            let reason: String = intent.reason.unwrap_or_default().chars().take(500).collect();
            tracing::warn!(source = subscription.source_id, reason, "a hub denied a subscription");
            feeds.rows(include_str!("../../sql/websub_denied.sql"), &[&token, &reason]).await
        }
        _ => return Err(not_wanted()),
    };
    if changed.map_err(problem)?.is_empty() {
        return Err(not_wanted());
    }
    Ok(challenge)
}

/// Takes content that a hub pushes. Content without a valid signature is refused.
#[utoipa::path(post, path = "/websub/{token}", params(("token" = String, Path)), request_body = Vec<u8>,
    responses((status = 202, description = "Stored"),
        (status = 400, description = "Too large, not complete in time, or not a feed"),
        (status = 403, description = "No valid signature"), (status = 404, description = "No such subscription"),
        (status = 410, description = "Not wanted any more"),
        (status = 429, description = "Too much content is being received")))]
pub(crate) async fn take_push(
    State(CallbackState { feeds, .. }): State<CallbackState>,
    Push { subscription, content_type, body }: Push,
) -> Result<StatusCode, Problem> {
    let started = Instant::now();
    if !subscription.wanted {
        return Ok(StatusCode::GONE);
    }
    let url = Url::parse(&subscription.url).map_err(|_| Problem::invalid("the source has no usable URL"))?;
    let document = parse::parse(&body.bytes, content_type.as_deref(), &url);
    let document = document.map_err(|error| Problem::invalid(error.to_string()))?;
    store(&feeds, subscription.source_id, &document, body.bytes.len(), started).await.map_err(problem)?;
    Ok(StatusCode::ACCEPTED)
}

async fn store(
    feeds: &Feeds,
    source_id: i64,
    document: &Document,
    bytes: usize,
    started: Instant,
) -> Result<(), Error> {
    let mut client = feeds.client().await?;
    let transaction = client.transaction().await?;
    let all: Vec<(i64, &Article)> = document.articles.iter().map(|article| (source_id, article)).collect();
    // Before the events are written, so that they follow those of a fetch that stores articles now.
    let source = sources::lock(&transaction, source_id).await?;
    source.ok_or_else(|| Error::NoSource(source_id.to_string()))?;
    let new = articles::add(&transaction, &all, feeds.event_topic()).await?;
    let new = new.get(&source_id).copied().unwrap_or_default();
    let small = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
    let took = small(usize::try_from(started.elapsed().as_millis()).unwrap_or(usize::MAX));
    let new = i32::try_from(new).unwrap_or(i32::MAX);
    let found = small(document.articles.len());
    transaction
        .execute(include_str!("../../sql/record_push.sql"), &[&source_id, &small(bytes), &took, &found, &new])
        .await?;
    Ok(transaction.commit().await?)
}
