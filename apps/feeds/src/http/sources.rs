//! Sources over HTTP.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use pitwheel::Role;
use pitwheel_server::{Body, Caller, ErrorResponses, Path, Problem, Query};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::http::api::Api;
use crate::http::problem::problem;
use crate::http::views::{FetchView, SourceView};
use crate::store::NewSource;

/// One page of sources.
#[derive(Debug, Deserialize, IntoParams)]
pub(crate) struct SourcesQuery {
    /// Only ids above this one: the `next` of the page before.
    after: Option<i64>,
    /// At most this many, up to 1000. Default: 50.
    limit: Option<i64>,
    /// Only the sources of this subscriber.
    subscriber: Option<String>,
}

/// One page of sources.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = FeedSourcePage)]
pub(crate) struct SourcePage {
    sources: Vec<SourceView>,
    /// The `after` of the next page; null after the last page.
    next: Option<i64>,
}

/// Lists sources, oldest first.
#[utoipa::path(get, path = "/api/v1/feeds/sources", params(SourcesQuery),
    responses((status = 200, body = SourcePage), ErrorResponses))]
pub(crate) async fn list_feed_sources(
    State(api): State<Api>,
    caller: Caller,
    Query(query): Query<SourcesQuery>,
) -> Result<Json<SourcePage>, Problem> {
    caller.require(Role::Viewer)?;
    let limit = query.limit.unwrap_or(50).clamp(1, crate::feeds::PAGE_MAX);
    let after = query.after.unwrap_or_default();
    let found = api.feeds.sources(after, limit, query.subscriber.as_deref()).await.map_err(problem)?;
    let is_full = usize::try_from(limit).is_ok_and(|limit| found.len() == limit);
    let next = found.last().filter(|_| is_full).map(|source| source.id);
    Ok(Json(SourcePage { sources: found.into_iter().map(SourceView::from).collect(), next }))
}

/// A source to add.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = NewFeedSource)]
#[serde(deny_unknown_fields)]
pub(crate) struct AddSource {
    /// The URL of the feed.
    url: String,
    /// Default: the URL.
    name: Option<String>,
    category: Option<String>,
    /// From -9 to 9; higher is fetched first. Default: 0.
    priority: Option<i16>,
    /// 1 to 10080. Default: 60.
    fetch_interval_minutes: Option<i32>,
}

/// Adds a source and enables it. If there is one with this URL, changes the settings that are given.
#[utoipa::path(post, path = "/api/v1/feeds/sources", request_body = AddSource,
    responses((status = 200, body = SourceView), (status = 201, body = SourceView), ErrorResponses))]
pub(crate) async fn add_feed_source(
    State(api): State<Api>,
    caller: Caller,
    Body(new): Body<AddSource>,
) -> Result<(StatusCode, Json<SourceView>), Problem> {
    caller.require(Role::Operator)?;
    let new = NewSource {
        url: new.url,
        name: new.name,
        category: new.category,
        priority: new.priority,
        fetch_interval_minutes: new.fetch_interval_minutes,
    };
    let (id, added) = api.feeds.add_source(&new).await.map_err(problem)?;
    let source = api.feeds.source(id).await.map_err(problem)?;
    Ok((if added { StatusCode::CREATED } else { StatusCode::OK }, Json(source.into())))
}

/// Shows a source.
#[utoipa::path(get, path = "/api/v1/feeds/sources/{id}", params(("id" = i64, Path)),
    responses((status = 200, body = SourceView), ErrorResponses))]
pub(crate) async fn show_feed_source(
    State(api): State<Api>,
    caller: Caller,
    Path(id): Path<i64>,
) -> Result<Json<SourceView>, Problem> {
    caller.require(Role::Viewer)?;
    Ok(Json(api.feeds.source(id).await.map_err(problem)?.into()))
}

/// Removes a source with its articles and subscriptions.
#[utoipa::path(delete, path = "/api/v1/feeds/sources/{id}", params(("id" = i64, Path)),
    responses((status = 204), ErrorResponses))]
pub(crate) async fn remove_feed_source(
    State(api): State<Api>,
    caller: Caller,
    Path(id): Path<i64>,
) -> Result<StatusCode, Problem> {
    caller.require(Role::Operator)?;
    api.feeds.remove(id).await.map_err(problem)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Enables a source.
#[utoipa::path(post, path = "/api/v1/feeds/sources/{id}/enable", params(("id" = i64, Path)),
    responses((status = 200, body = SourceView), ErrorResponses))]
pub(crate) async fn enable_feed_source(
    State(api): State<Api>,
    caller: Caller,
    Path(id): Path<i64>,
) -> Result<Json<SourceView>, Problem> {
    caller.require(Role::Operator)?;
    api.feeds.enable(id).await.map_err(problem)?;
    Ok(Json(api.feeds.source(id).await.map_err(problem)?.into()))
}

/// Disables a source. A fetch in progress finishes.
#[utoipa::path(post, path = "/api/v1/feeds/sources/{id}/disable", params(("id" = i64, Path)),
    responses((status = 200, body = SourceView), ErrorResponses))]
pub(crate) async fn disable_feed_source(
    State(api): State<Api>,
    caller: Caller,
    Path(id): Path<i64>,
) -> Result<Json<SourceView>, Problem> {
    caller.require(Role::Operator)?;
    api.feeds.disable(id).await.map_err(problem)?;
    Ok(Json(api.feeds.source(id).await.map_err(problem)?.into()))
}

/// Fetches a source now. A worker does it.
#[utoipa::path(post, path = "/api/v1/feeds/sources/{id}/fetch", params(("id" = i64, Path)),
    responses((status = 202), ErrorResponses))]
pub(crate) async fn fetch_feed_source(
    State(api): State<Api>,
    caller: Caller,
    Path(id): Path<i64>,
) -> Result<StatusCode, Problem> {
    caller.require(Role::Operator)?;
    api.feeds.fetch_now(id).await.map_err(problem)?;
    Ok(StatusCode::ACCEPTED)
}

/// One page of fetches.
#[derive(Debug, Deserialize, IntoParams)]
pub(crate) struct FetchesQuery {
    /// Only ids below this one.
    before: Option<i64>,
    /// At most this many, up to 1000. Default: 50.
    limit: Option<i64>,
}

/// Lists the fetches of a source, newest first. They are kept for 30 days.
#[utoipa::path(get, path = "/api/v1/feeds/sources/{id}/fetches", params(("id" = i64, Path), FetchesQuery),
    responses((status = 200, body = Vec<FetchView>), ErrorResponses))]
pub(crate) async fn list_feed_fetches(
    State(api): State<Api>,
    caller: Caller,
    Path(id): Path<i64>,
    Query(query): Query<FetchesQuery>,
) -> Result<Json<Vec<FetchView>>, Problem> {
    caller.require(Role::Viewer)?;
    let fetches = api.feeds.fetches(id, query.before, query.limit.unwrap_or(50)).await.map_err(problem)?;
    Ok(Json(fetches.into_iter().map(FetchView::from).collect()))
}
