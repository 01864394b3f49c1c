//! Articles over HTTP.

use axum::Json;
use axum::extract::State;
use pitwheel::Role;
use pitwheel_server::{Caller, ErrorResponses, Problem, Query};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::feeds::PAGE_MAX;
use crate::http::api::Api;
use crate::http::problem::problem;
use crate::http::views::ArticleView;

/// One page of articles.
#[derive(Debug, Deserialize, IntoParams)]
pub(crate) struct ArticlesQuery {
    /// Only ids below this one: the `next` of the page before.
    before: Option<i64>,
    /// At most this many, up to 1000. Default: 50.
    limit: Option<i64>,
    /// Only articles of this source.
    source: Option<i64>,
    /// Only articles of the sources of this subscriber.
    subscriber: Option<String>,
}

/// One page of articles.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = FeedArticlePage)]
pub(crate) struct ArticlePage {
    articles: Vec<ArticleView>,
    /// The `before` of the next page; null after the last page.
    next: Option<i64>,
}

/// Lists articles, newest first.
#[utoipa::path(get, path = "/api/v1/feeds/articles", params(ArticlesQuery),
    responses((status = 200, body = ArticlePage), ErrorResponses))]
pub(crate) async fn list_feed_articles(
    State(api): State<Api>,
    caller: Caller,
    Query(query): Query<ArticlesQuery>,
) -> Result<Json<ArticlePage>, Problem> {
    caller.require(Role::Viewer)?;
    let limit = query.limit.unwrap_or(50).clamp(1, PAGE_MAX);
    let subscriber = query.subscriber.as_deref();
    let found = api.feeds.articles(query.before, limit, query.source, subscriber).await.map_err(problem)?;
    let is_full = usize::try_from(limit).is_ok_and(|limit| found.len() == limit);
    let next = found.last().filter(|_| is_full).map(|article| article.id);
    Ok(Json(ArticlePage { articles: found.into_iter().map(ArticleView::from).collect(), next }))
}
