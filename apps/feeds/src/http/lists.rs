//! OPML and discovery over HTTP.

use axum::Json;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use pitwheel::Role;
use pitwheel_server::{Caller, ErrorResponses, Problem, Query};
use serde::{Deserialize, Serialize};
use url::Url;
use utoipa::{IntoParams, ToSchema};

use crate::discover::{self, Discovered};
use crate::fetch::FetchError;
use crate::http::api::Api;
use crate::http::problem::problem;
use crate::opml;

/// Exports all sources as OPML.
#[utoipa::path(get, path = "/api/v1/feeds/opml",
    responses((status = 200, body = String, content_type = "text/x-opml"), ErrorResponses))]
pub(crate) async fn export_feeds(State(api): State<Api>, caller: Caller) -> Result<Response, Problem> {
    caller.require(Role::Viewer)?;
    let all = api.feeds.export().await.map_err(problem)?;
    Ok(([(CONTENT_TYPE, "text/x-opml; charset=utf-8")], opml::write(&all)).into_response())
}

/// How to import.
#[derive(Debug, Deserialize, IntoParams)]
pub(crate) struct ImportQuery {
    /// Report what would be added, and add nothing.
    #[serde(default)]
    dry_run: bool,
}

/// What an import did, or would do.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = FeedImport)]
pub(crate) struct Import {
    dry_run: bool,
    /// Sources that were added.
    added: u64,
    /// Sources that were there already.
    known: u64,
    /// URLs that cannot be fetched.
    invalid: Vec<String>,
}

/// Imports the feeds of an OPML file: those that are not there yet.
#[utoipa::path(post, path = "/api/v1/feeds/opml", params(ImportQuery),
    request_body(content = String, content_type = "text/x-opml"),
    responses((status = 200, body = Import), ErrorResponses))]
pub(crate) async fn import_feeds(
    State(api): State<Api>,
    caller: Caller,
    Query(query): Query<ImportQuery>,
    text: String,
) -> Result<Json<Import>, Problem> {
    caller.require(Role::Operator)?;
    let list = opml::read(&text).map_err(|error| Problem::invalid(error.to_string()))?;
    let imported = api.feeds.import(&list, query.dry_run, |_| ()).await.map_err(problem)?;
    let (added, known) = (imported.added, imported.known);
    Ok(Json(Import { dry_run: query.dry_run, added, known, invalid: list.invalid }))
}

/// A page to search.
#[derive(Debug, Deserialize, IntoParams)]
pub(crate) struct DiscoverQuery {
    /// The URL of a page or of a feed.
    url: String,
}

/// Finds the feeds of a web page.
#[utoipa::path(get, path = "/api/v1/feeds/discover", params(DiscoverQuery),
    responses((status = 200, body = Vec<Discovered>), ErrorResponses))]
pub(crate) async fn discover_feeds(
    State(api): State<Api>,
    caller: Caller,
    Query(query): Query<DiscoverQuery>,
) -> Result<Json<Vec<Discovered>>, Problem> {
    caller.require(Role::Operator)?;
    let url = Url::parse(&query.url).map_err(|_| problem(FetchError::Url(query.url.clone()).into()))?;
    let found = discover::discover(&api.client, &url).await;
    Ok(Json(found.map_err(|error| problem(error.into()))?))
}
