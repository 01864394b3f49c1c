//! Jobs over HTTP.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use pitwheel::engine::limits::ENQUEUE_MAX;
use pitwheel::{Change, Changed, Filter, Lane, NewJob, Pitwheel};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

use crate::auth::caller::{Caller, Permission};
use crate::http::extract::{Body, Path, Query, limited, page_limit};
use crate::http::responses::{BodyErrorResponses, ErrorResponses};
use crate::limits;
use crate::observe::traces;
use crate::problem::Problem;
use crate::schemas::{JobState, Outcome};
use crate::views::{JobInFull, JobLine, parse_time};

/// Which jobs, and which page of them.
#[derive(Debug, Default, Deserialize, IntoParams, ToSchema)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct JobFilter {
    /// Only jobs of this queue.
    #[param(pattern = "^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,62}$")]
    #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,62}$")]
    queue: Option<String>,
    /// Only jobs of this kind.
    #[param(pattern = "^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,62}$")]
    #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,62}$")]
    kind: Option<String>,
    /// Only jobs in this state: `waiting`, `blocked`, `running`, `done`, `dead` or `cancelled`.
    #[param(value_type = Option<JobState>)]
    #[schema(value_type = Option<JobState>)]
    state: Option<String>,
    /// Only jobs with this key; those of redacted kinds only for callers who may see keys.
    #[param(min_length = 1, max_length = 512)]
    #[schema(min_length = 1, max_length = 512)]
    key: Option<String>,
    /// Only ids below this one: `next` of the previous page.
    before: Option<i64>,
    /// Jobs of a page: 1 to 1,000, default 50.
    #[param(minimum = 1, maximum = 1000)]
    #[schema(minimum = 1, maximum = 1000)]
    #[serde(default, deserialize_with = "page_limit")]
    limit: Option<u32>,
}

impl JobFilter {
    /// A viewer finds no job of a redacted kind by its key: the answer would tell that there is one.
    fn into_filter(self, caller: &Caller, finished: bool) -> Result<Filter, Problem> {
        Ok(Filter {
            without_redacted: self.key.is_some() && caller.needs_redaction(),
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
pub(crate) struct JobPage {
    /// Newest first. A page may have fewer than `limit` jobs, even none, although more pages follow: it scans a limited
    /// number of rows.
    jobs: Vec<JobLine>,
    /// Pass this as `before` to get the next page; null: this is the last page.
    next: Option<i64>,
}

impl JobPage {
    pub(crate) fn new(page: pitwheel::JobPage, redact: bool) -> JobPage {
        let jobs = page.jobs.into_iter().map(|job| JobLine::new(job, redact)).collect();
        JobPage { jobs, next: page.next }
    }
}

/// Lists jobs, live and finished, newest first, without their payloads.
#[utoipa::path(get, path = "/jobs", tag = "jobs", params(JobFilter), responses((status = 200, description = "One page of jobs", body = JobPage), ErrorResponses))]
pub(crate) async fn list_jobs(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Query(filter): Query<JobFilter>,
) -> Result<Json<JobPage>, Problem> {
    caller.check(Permission::View)?;
    page(&pitwheel, &caller, &filter.into_filter(&caller, false)?).await
}

/// Lists finished jobs, newest first, without their payloads.
#[utoipa::path(get, path = "/history", tag = "jobs", params(JobFilter), responses((status = 200, description = "One page of jobs", body = JobPage), ErrorResponses))]
pub(crate) async fn list_history(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Query(filter): Query<JobFilter>,
) -> Result<Json<JobPage>, Problem> {
    caller.check(Permission::View)?;
    if matches!(filter.state.as_deref(), Some("waiting" | "blocked" | "running")) {
        return Err(Problem::invalid(
            "the history has only jobs that are done, dead or cancelled: GET /api/v1/jobs lists the others",
        ));
    }
    page(&pitwheel, &caller, &filter.into_filter(&caller, true)?).await
}

async fn page(pitwheel: &Pitwheel, caller: &Caller, filter: &Filter) -> Result<Json<JobPage>, Problem> {
    let page = pitwheel.jobs(filter).await?;
    Ok(Json(JobPage::new(page, caller.needs_redaction())))
}

/// Shows one job in full, with its payload and errors.
#[utoipa::path(get, path = "/jobs/{id}", tag = "jobs", params(("id" = i64, Path, description = "The id of the job")),
    responses((status = 200, description = "The job", body = JobInFull), ErrorResponses))]
pub(crate) async fn show_job(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Path(id): Path<i64>,
) -> Result<Json<JobInFull>, Problem> {
    caller.check(Permission::ViewJob)?;
    Ok(Json(JobInFull::new(pitwheel.job(id).await?, caller.needs_redaction())))
}

/// A job to enqueue.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct JobToEnqueue {
    /// The name that picks its handler.
    #[schema(example = "greet", pattern = "^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,62}$")]
    kind: String,
    /// Any JSON, stored byte for byte; default `{}`.
    #[schema(value_type = Option<Value>)]
    payload: Option<Box<RawValue>>,
    /// The queue; default `default`.
    #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,62}$")]
    queue: Option<String>,
    /// The job is due at this time (RFC 3339); default now.
    #[schema(format = DateTime)]
    run_at: Option<String>,
    /// The job is due after this delay, in milliseconds. Not together with `run_at`.
    delay_ms: Option<u64>,
    /// -9 to 9, higher first; default 0.
    #[schema(minimum = -9, maximum = 9)]
    priority: Option<i16>,
    /// Attempts before the job is dead; default 20.
    #[schema(minimum = 1, maximum = 1000)]
    max_attempts: Option<u32>,
    /// The time limit of one attempt, in milliseconds; default none.
    timeout_ms: Option<u64>,
    /// While a live job of this kind has this key, no job is added and the response names the live job.
    #[schema(min_length = 1, max_length = 512)]
    key: Option<String>,
    /// JSON about the job beside its payload, such as a trace context.
    #[schema(value_type = Option<Value>)]
    metadata: Option<Box<RawValue>>,
    /// The lane: a string, or an array of strings, integers, booleans and nulls, at most 512 bytes. Jobs of one lane run one at a time,
    /// in the order in which they were enqueued.
    #[schema(value_type = Option<Value>)]
    lane: Option<Value>,
    /// While the job waits for its time (a delay, or the next attempt), others of its lane may run; default false.
    lane_pass: Option<bool>,
}

impl JobToEnqueue {
    pub(crate) fn into_job(self) -> Result<NewJob, Problem> {
        if self.run_at.is_some() && self.delay_ms.is_some() {
            return Err(Problem::invalid("a job has `run_at` or `delay_ms`, not both"));
        }
        let mut job = NewJob::raw(self.kind, self.payload.as_ref().map_or("{}", |payload| payload.get()));
        if let Some(queue) = self.queue {
            job = job.queue(queue);
        }
        if let Some(at) = self.run_at {
            job = job.run_at(parse_time("run_at", &at)?);
        }
        if let Some(delay) = self.delay_ms {
            job = job.delay(limits::span("delay_ms", Some(Duration::from_millis(delay)))?);
        }
        if let Some(priority) = self.priority {
            job = job.priority(priority);
        }
        if let Some(max) = self.max_attempts {
            job = job.max_attempts(max);
        }
        if let Some(timeout) = self.timeout_ms {
            job = job.timeout(limits::span("timeout_ms", Some(Duration::from_millis(timeout)))?);
        }
        if let Some(key) = self.key {
            job = job.key(key);
        }
        if let Some(metadata) = self.metadata {
            job = job.metadata_raw(metadata.get());
        }
        if let Some(lane) = self.lane {
            job = job.lane(Lane::of(lane)?);
        }
        Ok(job.lane_pass(self.lane_pass.unwrap_or(false)))
    }
}

/// Jobs to enqueue: 1 to 500.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EnqueueRequest {
    #[serde(deserialize_with = "limited::<_, _, ENQUEUE_MAX>")]
    #[schema(min_items = 1, max_items = 500)]
    jobs: Vec<JobToEnqueue>,
}

/// The jobs, in the order of the request.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EnqueueResponse {
    jobs: Vec<EnqueuedJob>,
}

/// An enqueued job.
#[derive(Debug, Serialize, ToSchema)]
struct EnqueuedJob {
    id: i64,
    /// False: a live job already had the kind and key, and this is its id.
    is_new: bool,
}

/// Enqueues jobs, all or none. Once this is answered, the jobs are stored durably. Jobs with keys can be sent again safely
/// after an error.
#[utoipa::path(post, path = "/jobs", tag = "jobs", request_body = EnqueueRequest,
    responses((status = 201, description = "The jobs are stored", body = EnqueueResponse), ErrorResponses, BodyErrorResponses))]
pub(crate) async fn enqueue_jobs(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    headers: HeaderMap,
    Body(request): Body<EnqueueRequest>,
) -> Result<(StatusCode, Json<EnqueueResponse>), Problem> {
    caller.check(Permission::Enqueue)?;
    let trace = traces::context_of(&headers);
    limits::enqueue(request.jobs.len())?;
    let jobs =
        request.jobs.into_iter().map(JobToEnqueue::into_job).collect::<Result<Vec<NewJob>, Problem>>()?;
    let enqueued = traces::enqueue(&pitwheel, jobs, trace).await?;
    let jobs = enqueued.into_iter().map(|job| EnqueuedJob { id: job.id, is_new: job.is_new }).collect();
    Ok((StatusCode::CREATED, Json(EnqueueResponse { jobs })))
}

/// The jobs to change: by ids, or one page of the jobs that match a filter.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct JobSelection {
    /// 1 to 1,000 job ids.
    ids: Option<Vec<i64>>,
    /// It must name a state. If the response has `next`, send the request again with `before` set to it.
    filter: Option<JobFilter>,
    /// For a reschedule only: when the jobs are due (RFC 3339); default now.
    #[schema(format = DateTime)]
    run_at: Option<String>,
}

/// The result of a change.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChangedJobs {
    jobs: Vec<ChangedJob>,
    /// Pass this as `filter.before` to change the next page; null: this was the last page.
    next: Option<i64>,
}

/// The result for one job.
#[derive(Debug, Serialize, ToSchema)]
struct ChangedJob {
    id: i64,
    /// `done`: the job was changed. `requested`: the job is running, and its handler was asked to stop. `not_found`: no job
    /// with this id is in a state that permits the change. `key_taken`: a live job has its kind and key.
    #[schema(value_type = Outcome, example = "done")]
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
    selection: JobSelection,
    change: Change,
) -> Result<Json<ChangedJobs>, Problem> {
    caller.check(Permission::Operate)?;
    let pitwheel = pitwheel.acting_as(caller.name());
    let (changed, next) = match (selection.ids, selection.filter) {
        (Some(ids), None) => (pitwheel.change(&ids, change).await?, None),
        (None, Some(filter)) => pitwheel.change_matching(&filter.into_filter(caller, false)?, change).await?,
        _ => return Err(Problem::invalid("the request needs `ids` or `filter`, and not both")),
    };
    let jobs = changed.into_iter().map(|(id, changed)| ChangedJob { id, outcome: outcome(changed) });
    Ok(Json(ChangedJobs { jobs: jobs.collect(), next }))
}

fn refuse_run_at(selection: &JobSelection) -> Result<(), Problem> {
    match selection.run_at {
        None => Ok(()),
        Some(_) => Err(Problem::invalid("`run_at` is only for a reschedule")),
    }
}

/// Cancels jobs. Waiting jobs are cancelled at once; the handlers of running jobs are asked to stop.
#[utoipa::path(post, path = "/jobs/cancel", tag = "jobs", request_body = JobSelection,
    responses((status = 200, description = "What became of each job", body = ChangedJobs), ErrorResponses, BodyErrorResponses))]
pub(crate) async fn cancel_jobs(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Body(selection): Body<JobSelection>,
) -> Result<Json<ChangedJobs>, Problem> {
    refuse_run_at(&selection)?;
    change(&pitwheel, &caller, selection, Change::Cancel).await
}

/// Retries dead or cancelled jobs: they are due now, and their attempts start again at 1.
#[utoipa::path(post, path = "/jobs/retry", tag = "jobs", request_body = JobSelection,
    responses((status = 200, description = "What became of each job", body = ChangedJobs), ErrorResponses, BodyErrorResponses))]
pub(crate) async fn retry_jobs(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Body(selection): Body<JobSelection>,
) -> Result<Json<ChangedJobs>, Problem> {
    refuse_run_at(&selection)?;
    change(&pitwheel, &caller, selection, Change::Retry).await
}

/// Deletes waiting or finished jobs. They cannot be restored.
#[utoipa::path(post, path = "/jobs/delete", tag = "jobs", request_body = JobSelection,
    responses((status = 200, description = "What became of each job", body = ChangedJobs), ErrorResponses, BodyErrorResponses))]
pub(crate) async fn delete_jobs(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Body(selection): Body<JobSelection>,
) -> Result<Json<ChangedJobs>, Problem> {
    refuse_run_at(&selection)?;
    change(&pitwheel, &caller, selection, Change::Delete).await
}

/// Changes when waiting jobs are due.
#[utoipa::path(post, path = "/jobs/reschedule", tag = "jobs", request_body = JobSelection,
    responses((status = 200, description = "What became of each job", body = ChangedJobs), ErrorResponses, BodyErrorResponses))]
pub(crate) async fn reschedule_jobs(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Body(selection): Body<JobSelection>,
) -> Result<Json<ChangedJobs>, Problem> {
    let at = selection.run_at.as_deref().map(|at| parse_time("run_at", at)).transpose()?;
    change(&pitwheel, &caller, selection, Change::Reschedule(at)).await
}
