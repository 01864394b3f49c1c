//! The callback of hubs: verification of intent, denials, and pushed content. It needs no token of the API; its path holds a secret.

use std::time::Instant;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use pitwheel_server::Problem;
use serde::Deserialize;
use url::Url;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::error::Error;
use crate::feeds::Feeds;
use crate::fetch::limits::BODY_BYTES_MAX;
use crate::http::problem::problem;
use crate::parse::{self, Article, Document};
use crate::store::websub::Callback;
use crate::store::{articles, sources};
use crate::websub::signature::verify;

/// The paths that hubs call. They need no token.
pub const PUBLIC_PREFIX: &str = "/websub/";
/// The shortest and the longest lease that are believed.
const LEASE_SECONDS: std::ops::RangeInclusive<i64> = 60..=366 * 24 * 3600;

/// The routes of the callback.
pub fn routes(feeds: &Feeds) -> OpenApiRouter {
    OpenApiRouter::new()
        .routes(routes!(verify_intent, take_push))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(feeds.clone())
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

async fn callback(feeds: &Feeds, token: &str) -> Result<Callback, Problem> {
    let rows = feeds.rows(include_str!("../../sql/websub_by_token.sql"), &[&token]).await.map_err(problem)?;
    rows.first().map(Callback::read).ok_or_else(|| Problem::not_found("there is no such subscription"))
}

/// Confirms to a hub that a subscription, or its end, is wanted.
#[utoipa::path(get, path = "/websub/{token}", params(("token" = String, Path), Intent),
    responses((status = 200, description = "The challenge", body = String),
        (status = 404, description = "Not wanted")))]
pub(crate) async fn verify_intent(
    State(feeds): State<Feeds>,
    Path(token): Path<String>,
    Query(intent): Query<Intent>,
) -> Result<String, Problem> {
    let known = callback(&feeds, &token).await?;
    let not_wanted = || Problem::not_found("this is not wanted");
    if known.topic_url != intent.topic {
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
            tracing::warn!(source = known.source_id, reason, "a hub denied a subscription");
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
    responses((status = 202, description = "Stored"), (status = 403, description = "No valid signature"),
        (status = 404, description = "No such subscription"), (status = 410, description = "Not wanted any more")))]
pub(crate) async fn take_push(
    State(feeds): State<Feeds>,
    Path(token): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Problem> {
    let started = Instant::now();
    let known = callback(&feeds, &token).await?;
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if let Err(error) = verify(&known.secret, text("x-hub-signature"), &body) {
        tracing::warn!(source = known.source_id, %error, "refused content of a hub");
        return Err(Problem::forbidden(error.to_string()));
    }
    if !known.wanted {
        return Ok(StatusCode::GONE.into_response());
    }
    let url = Url::parse(&known.url).map_err(|_| Problem::invalid("the source has no usable URL"))?;
    let kind = text(CONTENT_TYPE.as_str());
    let document = parse::parse(&body, kind, &url).map_err(|error| Problem::invalid(error.to_string()))?;
    store(&feeds, known.source_id, &document, body.len(), started).await.map_err(problem)?;
    Ok(StatusCode::ACCEPTED.into_response())
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
