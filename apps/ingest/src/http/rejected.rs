//! Rejected rows over HTTP.

use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures_util::stream::try_unfold;
use pitwheel::Role;
use pitwheel_server::{Caller, ErrorResponses, Path, Problem};

use crate::error::Error;
use crate::http::problem::problem;
use crate::ingest::{Ingest, PAGE_MAX};
use crate::rejected::{HEADER, csv};

/// Downloads the rejected rows of a job as CSV: line, column, reason and the row itself.
#[utoipa::path(get, path = "/api/v1/ingest/jobs/{id}/rejected", params(("id" = i64, Path)),
    responses((status = 200, body = String, content_type = "text/csv"), ErrorResponses))]
pub(crate) async fn download_rejected_rows(
    State(ingest): State<Ingest>,
    caller: Caller,
    Path(id): Path<i64>,
) -> Result<Response, Problem> {
    caller.require(Role::Operator)?;
    let first = ingest.rejected(id, 0, PAGE_MAX).await.map_err(problem)?;
    let pages = try_unfold((Some(first), HEADER.to_owned()), move |(page, head)| {
        let ingest = ingest.clone();
        async move {
            let Some(rows) = page else { return Ok::<_, Error>(None) };
            let next = match rows.last() {
                Some(last) => Some(ingest.rejected(id, last.line, PAGE_MAX).await?),
                None => None,
            };
            Ok(Some((head + &csv(&rows), (next, String::new()))))
        }
    });
    let name = format!("attachment; filename=\"rejected-{id}.csv\"");
    let headers = [(CONTENT_TYPE, "text/csv; charset=utf-8".to_owned()), (CONTENT_DISPOSITION, name)];
    Ok((headers, Body::from_stream(Box::pin(pages))).into_response())
}
