//! All routes of the feeds.

use std::sync::Arc;

use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::feeds::Feeds;
use crate::fetch::Client;
use crate::http::api::Api;
use crate::http::{articles, lists, sources, subscriptions};

/// The routes, to be added to a server. `client` fetches pages to find their feeds.
pub fn routes(feeds: &Feeds, client: Client) -> OpenApiRouter {
    OpenApiRouter::new()
        .routes(routes!(sources::list_feed_sources, sources::add_feed_source))
        .routes(routes!(sources::show_feed_source, sources::remove_feed_source))
        .routes(routes!(sources::enable_feed_source))
        .routes(routes!(sources::disable_feed_source))
        .routes(routes!(sources::fetch_feed_source))
        .routes(routes!(sources::list_feed_fetches))
        .routes(routes!(subscriptions::subscribe_feed))
        .routes(routes!(subscriptions::unsubscribe_feed))
        .routes(routes!(articles::list_feed_articles))
        .routes(routes!(lists::export_feeds, lists::import_feeds))
        .routes(routes!(lists::discover_feeds))
        .with_state(Api { feeds: feeds.clone(), client: Arc::new(client) })
}
