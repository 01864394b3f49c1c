//! What changes, as it changes (server-sent events).

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

use crate::auth::access::{Caller, Need};
use crate::http::extract::Query;
use crate::http::responses::Answer;
use crate::observe::watch::{JOBS_MAX, News, Watch};
use crate::problem::Problem;

/// What to watch.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct What {
    /// Up to 100 job ids, separated by commas; without any, the queues.
    jobs: Option<String>,
}

/// A stream of events. With `jobs`: a `job` event with its line for each of them at once and whenever it changes (state,
/// attempt, progress), and `end` when all are finished. Without: a `queue` event for each queue at once and whenever it
/// changes. A new stream begins with how things stand, so nothing is missed by opening another.
#[utoipa::path(get, path = "/events", tag = "events", params(What),
    responses((status = 200, content_type = "text/event-stream", body = String), Answer))]
pub(crate) async fn events(
    State(watch): State<Arc<Watch>>,
    caller: Caller,
    Query(what): Query<What>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    let ids = what.jobs.as_deref().map(ids).transpose()?.unwrap_or_default();
    caller.must(if ids.is_empty() { Need::See } else { Need::SeeJob })?;
    let news = watch.open(ids).ok_or_else(|| Problem::busy("too many streams of events are open here"))?;
    let events = unfold(Some(news), async |news| {
        let mut news = news?;
        let next = news.recv().await?;
        let rest = (!matches!(next, News::End)).then_some(news);
        Some((Ok(event(next)), rest))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(Duration::from_secs(15))))
}

fn ids(text: &str) -> Result<Vec<i64>, Problem> {
    let read = text.split(',').map(|id| id.trim().parse::<i64>()).collect::<Result<Vec<i64>, _>>();
    let ids = read.map_err(|_| Problem::invalid("jobs is not a list of ids, as 41,42,43"))?;
    if ids.len() > JOBS_MAX {
        return Err(Problem::invalid(format!("{} jobs are too many: watch {JOBS_MAX} at most", ids.len())));
    }
    Ok(ids)
}

fn event(news: News) -> Event {
    let (name, data) = match news {
        News::Job(job) => ("job", serde_json::to_string(&job)),
        News::Queue(queue) => ("queue", serde_json::to_string(&queue)),
        News::NoJob(id) => ("not_found", Ok(json!({ "id": id }).to_string())),
        News::End => ("end", Ok("{}".to_owned())),
    };
    Event::default().event(name).data(data.unwrap_or_default())
}
