//! Subscriptions over HTTP.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use pitwheel::Role;
use pitwheel_server::{Body, Caller, ErrorResponses, Path, Problem};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::http::api::Api;
use crate::http::problem::problem;

/// A subscription to make.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = NewFeedSubscription)]
#[serde(deny_unknown_fields)]
pub(crate) struct Subscribe {
    /// The URL of the feed. The source is added if there is none.
    url: String,
    /// Who subscribes: any name of 1 to 200 bytes.
    subscriber: String,
}

/// A subscription.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = FeedSubscription)]
pub(crate) struct Subscription {
    source_id: i64,
    subscriber: String,
}

/// Subscribes to a feed. The first subscriber of a source enables it.
#[utoipa::path(post, path = "/api/v1/feeds/subscriptions", request_body = Subscribe,
    responses((status = 200, body = Subscription), (status = 201, body = Subscription), ErrorResponses))]
pub(crate) async fn subscribe_feed(
    State(api): State<Api>,
    caller: Caller,
    Body(new): Body<Subscribe>,
) -> Result<(StatusCode, Json<Subscription>), Problem> {
    caller.require(Role::Operator)?;
    let subscribed = api.feeds.subscribe(&new.url, &new.subscriber).await.map_err(problem)?;
    let status = if subscribed.is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(Subscription { source_id: subscribed.source_id, subscriber: new.subscriber })))
}

/// Ends a subscription. The last subscriber of a source to leave disables it.
#[utoipa::path(delete, path = "/api/v1/feeds/sources/{id}/subscribers/{subscriber}",
    params(("id" = i64, Path), ("subscriber" = String, Path)), responses((status = 204), ErrorResponses))]
pub(crate) async fn unsubscribe_feed(
    State(api): State<Api>,
    caller: Caller,
    Path((id, subscriber)): Path<(i64, String)>,
) -> Result<StatusCode, Problem> {
    caller.require(Role::Operator)?;
    if !api.feeds.unsubscribe(id, &subscriber).await.map_err(problem)? {
        return Err(Problem::not_found(format!("`{subscriber}` does not subscribe to source {id}")));
    }
    Ok(StatusCode::NO_CONTENT)
}
