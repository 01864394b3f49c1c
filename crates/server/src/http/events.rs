//! Changes of jobs and queues as server-sent events.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Sse;
use axum::response::sse::{Event, KeepAlive};
use futures_util::Stream;
use futures_util::stream::unfold;
use serde::Deserialize;
use serde_json::json;
use utoipa::IntoParams;

use crate::auth::caller::{Caller, Permission};
use crate::http::extract::Query;
use crate::http::responses::ErrorResponses;
use crate::observe::watch::{Change, JOBS_MAX, Watch};
use crate::problem::Problem;

/// A comment is sent after this long without an event, so that proxies keep the connection open.
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(15);

/// What to watch.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct EventQuery {
    /// Up to 100 job ids, separated by commas. Without this, the queues are watched.
    jobs: Option<String>,
}

/// Streams events. With `jobs`: one `job` event for each job at once, another whenever its state, attempt or progress
/// changes, a `not_found` event for an id that does not exist, and `end` when all are finished. Without `jobs`: one
/// `queue` event for each queue at once and another whenever it changes. A new stream starts with the current state, so
/// reopening a stream misses nothing.
#[utoipa::path(get, path = "/events", tag = "events", params(EventQuery),
    responses((status = 200, description = "The events", content_type = "text/event-stream", body = String), ErrorResponses))]
pub(crate) async fn watch_events(
    State(watch): State<Arc<Watch>>,
    caller: Caller,
    Query(query): Query<EventQuery>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    let ids = query.jobs.as_deref().map(ids).transpose()?.unwrap_or_default();
    caller.check(if ids.is_empty() { Permission::View } else { Permission::ViewJob })?;
    let changes = watch.open(&caller, ids)?;
    let events = unfold(Some(changes), async |changes| {
        let mut changes = changes?;
        let next = changes.recv().await?;
        let rest = (!matches!(next, Change::End)).then_some(changes);
        Some((Ok(event(next)), rest))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE_EVERY)))
}

fn ids(text: &str) -> Result<Vec<i64>, Problem> {
    let read = text.split(',').map(|id| id.trim().parse::<i64>()).collect::<Result<Vec<i64>, _>>();
    let ids = read.map_err(|_| Problem::invalid("`jobs` is not a list of ids: write it as in 41,42,43"))?;
    if ids.len() > JOBS_MAX {
        return Err(Problem::invalid(format!("`jobs` has {} ids: watch {JOBS_MAX} at most", ids.len())));
    }
    Ok(ids)
}

fn event(change: Change) -> Event {
    let (name, data) = match change {
        Change::Job(job) => ("job", serde_json::to_string(&job)),
        Change::Queue(queue) => ("queue", serde_json::to_string(&queue)),
        Change::NotFound(id) => ("not_found", Ok(json!({ "id": id }).to_string())),
        Change::End => ("end", Ok("{}".to_owned())),
    };
    Event::default().event(name).data(data.unwrap_or_default())
}
