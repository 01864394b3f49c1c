//! All routes of the ingestion.

use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::http::{jobs, lanes, rejected, syncs, uploads, versions};
use crate::ingest::Ingest;

/// The bodies of these paths are streamed: give it to [`pitwheel_server::Server::streamed`].
pub const STREAMED_PREFIX: &str = "/api/v1/ingest/uploads";

/// The routes, to be added to a server.
pub fn routes(ingest: &Ingest) -> OpenApiRouter {
    OpenApiRouter::new()
        .routes(routes!(uploads::upload_ingest_file))
        .routes(routes!(syncs::request_ingest_sync))
        .routes(routes!(jobs::list_ingest_jobs))
        .routes(routes!(jobs::show_ingest_job))
        .routes(routes!(rejected::download_rejected_rows))
        .routes(routes!(lanes::list_ingest_lanes))
        .routes(routes!(versions::list_ingest_versions))
        .routes(routes!(versions::show_ingest_version))
        .routes(routes!(versions::promote_ingest_version))
        .routes(routes!(versions::list_ingest_rows))
        .with_state(ingest.clone())
}
