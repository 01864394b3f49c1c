//! Jobs over HTTP.

use std::time::{Duration, SystemTime};

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use pitwheel::{Change, Changed, Filter, NewJob, Pitwheel};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

use crate::auth::access::{Caller, Need, trace_of};
use crate::http::extract::{Body, Path, Query};
use crate::http::responses::Answer;
use crate::limits;
use crate::observe::traces;
use crate::problem::Problem;
use crate::views::{JobInFull, JobLine};

/// Which jobs, and which page of them.
#[derive(Debug, Default, Deserialize, IntoParams, ToSchema)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct Which {
    /// Only this queue.
    queue: Option<String>,
    /// Only this kind.
    kind: Option<String>,
    /// Only this state: `waiting`, `running`, `done`, `dead` or `cancelled`.
    state: Option<String>,
    /// Only this key.
    key: Option<String>,
    /// Only ids below this one: `next` of the page before.
    before: Option<i64>,
    /// How many, at most 1,000; 50 by default.
    limit: Option<u32>,
}

impl Which {
    fn filter(self, finished: bool) -> Result<Filter, Problem> {
        Ok(Filter {
            queue: self.queue,
            kind: self.kind,
            state: self.state.map(|state| state.parse()).transpose()?,
            key: self.key,
            finished,
            before: self.before,
            limit: self.limit.unwrap_or(0) as usize,
        })
    }
}

/// One page of a list of jobs.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Jobs {
    /// Newest first. Fewer than `limit`, even none, when few of those that were looked at match.
    jobs: Vec<JobLine>,
    /// What `before` must be for the next page; null: there is none.
    next: Option<i64>,
}

/// Lists jobs, live and finished, newest first, without their payloads.
#[utoipa::path(get, path = "/jobs", tag = "jobs", params(Which), responses((status = 200, body = Jobs), Answer))]
pub(crate) async fn list(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Query(which): Query<Which>,
) -> Result<Json<Jobs>, Problem> {
    caller.must(Need::See)?;
    page(&pitwheel, &which.filter(false)?).await
}

/// Lists finished jobs, newest first, without their payloads.
#[utoipa::path(get, path = "/history", tag = "jobs", params(Which), responses((status = 200, body = Jobs), Answer))]
pub(crate) async fn history(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Query(which): Query<Which>,
) -> Result<Json<Jobs>, Problem> {
    caller.must(Need::See)?;
    if matches!(which.state.as_deref(), Some("waiting" | "running")) {
        return Err(Problem::invalid("a finished job is done, dead or cancelled: ask /jobs for the others"));
    }
    page(&pitwheel, &which.filter(true)?).await
}

async fn page(pitwheel: &Pitwheel, filter: &Filter) -> Result<Json<Jobs>, Problem> {
    let page = pitwheel.jobs(filter).await?;
    Ok(Json(Jobs { jobs: page.jobs.into_iter().map(JobLine::from).collect(), next: page.next }))
}

/// Shows all about one job: payload, attempts and errors included.
#[utoipa::path(get, path = "/jobs/{id}", tag = "jobs", params(("id" = i64, Path)),
    responses((status = 200, body = JobInFull), Answer))]
pub(crate) async fn show(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Path(id): Path<i64>,
) -> Result<Json<JobInFull>, Problem> {
    caller.must(Need::SeeJob)?;
    Ok(Json(JobInFull::new(pitwheel.job(id).await?, caller.only_looks())))
}

/// A job to enqueue.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct JobToEnqueue {
    /// The name that picks its handler.
    #[schema(example = "greet")]
    kind: String,
    /// Any JSON, kept byte for byte; `{}` by default.
    #[schema(value_type = Option<Object>)]
    payload: Option<Box<RawValue>>,
    /// `default` by default.
    queue: Option<String>,
    /// Not before this time (RFC 3339).
    run_at: Option<String>,
    /// Not before this much later, in milliseconds.
    delay_ms: Option<u64>,
    /// -9 to 9, higher first; 0 by default.
    priority: Option<i16>,
    /// How often it may be attempted; 20 by default.
    max_attempts: Option<u32>,
    /// How long one attempt may take, in milliseconds.
    timeout_ms: Option<u64>,
    /// While a job of this kind with this key is live, that one is given back.
    key: Option<String>,
    /// JSON about the job that is not its payload.
    #[schema(value_type = Option<Object>)]
    metadata: Option<Box<RawValue>>,
}

impl JobToEnqueue {
    fn read(self) -> Result<NewJob, Problem> {
        if self.run_at.is_some() && self.delay_ms.is_some() {
            return Err(Problem::invalid("a job has run_at or delay_ms, not both"));
        }
        let mut job = NewJob::raw(self.kind, self.payload.as_ref().map_or("{}", |payload| payload.get()));
        if let Some(queue) = self.queue {
            job = job.queue(queue);
        }
        if let Some(at) = self.run_at {
            job = job.run_at(moment("run_at", &at)?);
        }
        if let Some(delay) = self.delay_ms {
            job = job.delay(span("delay_ms", delay)?);
        }
        if let Some(priority) = self.priority {
            job = job.priority(priority);
        }
        if let Some(max) = self.max_attempts {
            job = job.max_attempts(max);
        }
        if let Some(timeout) = self.timeout_ms {
            job = job.timeout(span("timeout_ms", timeout)?);
        }
        if let Some(key) = self.key {
            job = job.key(key);
        }
        if let Some(metadata) = self.metadata {
            job = job.metadata_raw(metadata.get());
        }
        Ok(job)
    }
}

pub(crate) fn moment(what: &str, text: &str) -> Result<SystemTime, Problem> {
    let time = text.parse::<Timestamp>().ok().map(SystemTime::from);
    time.filter(|time| limits::is_sane(*time)).ok_or_else(|| {
        Problem::invalid(format!("{what} is not a time from 1970 to 2200, as 2030-01-31T08:00:00Z"))
    })
}

fn span(what: &str, millis: u64) -> Result<Duration, Problem> {
    let span = Duration::from_millis(millis);
    (span <= limits::SPAN_MAX)
        .then_some(span)
        .ok_or_else(|| Problem::invalid(format!("{what} is above 100 years")))
}

/// Jobs to enqueue, at most 500.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Batch {
    jobs: Vec<JobToEnqueue>,
}

/// The jobs, in the order given.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Enqueued {
    jobs: Vec<EnqueuedJob>,
}

/// A job that is in the queue.
#[derive(Debug, Serialize, ToSchema)]
struct EnqueuedJob {
    id: i64,
    /// False: a live job has the kind and key already, and this is that one.
    is_new: bool,
}

/// Enqueues jobs, all or none. Once this is answered, none of them is lost; give them keys to repeat it safely.
#[utoipa::path(post, path = "/jobs", tag = "jobs", request_body = Batch,
    responses((status = 201, body = Enqueued), Answer))]
pub(crate) async fn enqueue(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    headers: HeaderMap,
    Body(batch): Body<Batch>,
) -> Result<(StatusCode, Json<Enqueued>), Problem> {
    caller.must(Need::Enqueue)?;
    let trace = trace_of(&headers);
    limits::enqueue(batch.jobs.len()).map_err(|status| Problem::invalid(status.message()))?;
    let jobs = batch.jobs.into_iter().map(JobToEnqueue::read).collect::<Result<Vec<NewJob>, Problem>>()?;
    let enqueued = traces::enqueue(&pitwheel, jobs, trace).await?;
    let jobs = enqueued.into_iter().map(|job| EnqueuedJob { id: job.id, is_new: job.is_new }).collect();
    Ok((StatusCode::CREATED, Json(Enqueued { jobs })))
}

/// The jobs to change: those with these ids, or one page of those that match.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Selection {
    /// At most 1,000.
    ids: Option<Vec<i64>>,
    /// It must name a state. Ask again with `before`, as the answer says, until it names no more.
    filter: Option<Which>,
    /// For a reschedule: due at this time (RFC 3339); now, when it is left out.
    run_at: Option<String>,
}

/// What a change came to.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChangedJobs {
    jobs: Vec<ChangedJob>,
    /// What `filter.before` must be for the next page; null: there is none.
    next: Option<i64>,
}

/// What it came to for one job.
#[derive(Debug, Serialize, ToSchema)]
struct ChangedJob {
    id: i64,
    /// `done`; `requested`: it runs, and its handler was asked to stop; `not_found`: no job with this id is in a state for
    /// it; `key_taken`: a live job has its kind and key.
    #[schema(example = "done")]
    outcome: &'static str,
}

fn outcome(changed: Changed) -> &'static str {
    match changed {
        Changed::Done => "done",
        Changed::Requested => "requested",
        Changed::NotFound => "not_found",
        Changed::KeyTaken => "key_taken",
    }
}

async fn change(
    pitwheel: &Pitwheel,
    caller: &Caller,
    selection: Selection,
    change: Change,
) -> Result<Json<ChangedJobs>, Problem> {
    caller.must(Need::Operate)?;
    let pitwheel = pitwheel.acting_as(&caller.name);
    let (changed, next) = match (selection.ids, selection.filter) {
        (Some(ids), None) => (pitwheel.change(&ids, change).await?, None),
        (None, Some(which)) => pitwheel.change_matching(&which.filter(false)?, change).await?,
        _ => return Err(Problem::invalid("give ids or a filter, one of the two")),
    };
    let jobs = changed.into_iter().map(|(id, changed)| ChangedJob { id, outcome: outcome(changed) });
    Ok(Json(ChangedJobs { jobs: jobs.collect(), next }))
}

fn no_time(selection: &Selection) -> Result<(), Problem> {
    let none = selection.run_at.is_none().then_some(());
    none.ok_or_else(|| Problem::invalid("run_at is for a reschedule only"))
}

/// Cancels jobs: at once when they wait, by asking their handlers when they run.
#[utoipa::path(post, path = "/jobs/cancel", tag = "jobs", request_body = Selection,
    responses((status = 200, body = ChangedJobs), Answer))]
pub(crate) async fn cancel(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Body(selection): Body<Selection>,
) -> Result<Json<ChangedJobs>, Problem> {
    no_time(&selection)?;
    change(&pitwheel, &caller, selection, Change::Cancel).await
}

/// Lets dead or cancelled jobs live again, due now, with all their attempts before them.
#[utoipa::path(post, path = "/jobs/retry", tag = "jobs", request_body = Selection,
    responses((status = 200, body = ChangedJobs), Answer))]
pub(crate) async fn retry(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Body(selection): Body<Selection>,
) -> Result<Json<ChangedJobs>, Problem> {
    no_time(&selection)?;
    change(&pitwheel, &caller, selection, Change::Retry).await
}

/// Forgets waiting or finished jobs for good.
#[utoipa::path(post, path = "/jobs/delete", tag = "jobs", request_body = Selection,
    responses((status = 200, body = ChangedJobs), Answer))]
pub(crate) async fn delete(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Body(selection): Body<Selection>,
) -> Result<Json<ChangedJobs>, Problem> {
    no_time(&selection)?;
    change(&pitwheel, &caller, selection, Change::Delete).await
}

/// Lets waiting jobs be due at another time.
#[utoipa::path(post, path = "/jobs/reschedule", tag = "jobs", request_body = Selection,
    responses((status = 200, body = ChangedJobs), Answer))]
pub(crate) async fn reschedule(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Body(selection): Body<Selection>,
) -> Result<Json<ChangedJobs>, Problem> {
    let at = selection.run_at.as_deref().map(|at| moment("run_at", at)).transpose()?;
    change(&pitwheel, &caller, selection, Change::Reschedule(at)).await
}
