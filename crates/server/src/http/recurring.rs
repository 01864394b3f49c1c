//! Recurring jobs over HTTP.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use pitwheel::{Misfire, NewRecurring, Pitwheel, RecurringFilter, RecurringJob, RunNow};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

use crate::auth::caller::{Caller, Permission};
use crate::http::extract::{Body, Path, Query, page_limit};
use crate::http::responses::{BodyErrorResponses, ErrorResponses};
use crate::limits;
use crate::problem::Problem;
use crate::recurring_views::{RecurringInFull, RecurringLine};
use crate::schemas;
use crate::views::{JobLine, parse_time, time};

/// Which recurring jobs, and which page of them.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct RecurringQuery {
    /// Only recurring jobs of this kind.
    #[param(pattern = "^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,62}$")]
    kind: Option<String>,
    /// Only those whose runs wait in this queue.
    #[param(pattern = "^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,62}$")]
    queue: Option<String>,
    /// Only enabled (`true`) or disabled (`false`) ones.
    enabled: Option<bool>,
    /// Only the one with this key. `kind` must be given, too.
    #[param(min_length = 1, max_length = 512)]
    key: Option<String>,
    /// Only ids below this one: `next` of the previous page.
    before: Option<i64>,
    /// Recurring jobs of a page: 1 to 1,000, default 50.
    #[param(minimum = 1, maximum = 1000)]
    #[serde(default, deserialize_with = "page_limit")]
    limit: Option<u32>,
}

/// One page of a list of recurring jobs.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RecurringPage {
    /// Newest first. A page may have fewer than `limit`, even none, although more pages follow: it scans a limited number of
    /// rows.
    recurring: Vec<RecurringLine>,
    /// Pass this as `before` to get the next page; null: this is the last page.
    next: Option<i64>,
}

/// Lists recurring jobs, newest first, without their payloads.
#[utoipa::path(get, path = "/recurring", tag = "recurring", params(RecurringQuery), responses((status = 200, description = "One page of recurring jobs", body = RecurringPage), ErrorResponses))]
pub(crate) async fn list_recurring(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Query(query): Query<RecurringQuery>,
) -> Result<Json<RecurringPage>, Problem> {
    caller.check(Permission::View)?;
    let redact = caller.needs_redaction();
    let (recurring, next) = match (query.key, query.kind.as_deref()) {
        (Some(key), Some(kind)) => {
            let found = pitwheel.recurring().find(kind, &key).await?;
            let is_asked = |found: &RecurringJob| {
                query.queue.as_ref().is_none_or(|queue| *queue == found.queue)
                    && query.enabled.is_none_or(|enabled| enabled == found.enabled)
                    && query.before.is_none_or(|before| found.id < before)
                    // A filter by key would tell a caller who may not see keys whether there is one.
                    && !(redact && found.redacted)
            };
            (found.map(|found| found.summary).filter(is_asked).into_iter().collect(), None)
        }
        (Some(_), None) => return Err(Problem::invalid("`key` needs `kind`: a key belongs to a kind")),
        (None, _) => {
            let filter = RecurringFilter {
                kind: query.kind,
                queue: query.queue,
                enabled: query.enabled,
                before: query.before,
                limit: query.limit.unwrap_or(0) as usize,
            };
            let page = pitwheel.recurring().list(&filter).await?;
            (page.recurring, page.next)
        }
    };
    let recurring = recurring.into_iter().map(|one| RecurringLine::new(one, redact)).collect();
    Ok(Json(RecurringPage { recurring, next }))
}

/// A recurring job to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RecurringToCreate {
    /// The kind of its runs, which picks their handler.
    #[schema(example = "fetch_feed", pattern = "^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,62}$")]
    kind: String,
    /// The key: a kind has one recurring job with it.
    #[schema(min_length = 1, max_length = 512)]
    key: String,
    /// `every 15m`, `cron 30 2 * * 1-5 Europe/Zurich` (UTC without a time zone) or `adaptive 15m..24h`, each with an optional
    /// `jitter 30s` at its end.
    #[schema(example = "every 15m")]
    cadence: String,
    /// What becomes of planned times at which it could not run: `skip`, `one` (default) or `all`.
    #[schema(value_type = Option<schemas::Misfire>)]
    misfire: Option<String>,
    /// The payload of its runs: any JSON, stored byte for byte; default `{}`.
    #[schema(value_type = Option<Value>)]
    payload: Option<Box<RawValue>>,
    /// The queue of its runs; default `default`.
    #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,62}$")]
    queue: Option<String>,
    /// -9 to 9, higher first; default 0.
    #[schema(minimum = -9, maximum = 9)]
    priority: Option<i16>,
    /// Attempts of one run before it is dead and the next run follows; default no limit.
    #[schema(minimum = 1, maximum = 1000)]
    max_attempts: Option<u32>,
    /// The time limit of one attempt, in milliseconds; default none.
    timeout_ms: Option<u64>,
    /// JSON about its runs beside their payload.
    #[schema(value_type = Option<Value>)]
    metadata: Option<Box<RawValue>>,
    /// The time of its first run (RFC 3339). Without it, `every` and `adaptive` begin at once, and `cron` at its next time.
    #[schema(format = DateTime)]
    first_at: Option<String>,
}

impl RecurringToCreate {
    fn into_new(self) -> Result<NewRecurring, Problem> {
        let payload = self.payload.as_ref().map_or("{}", |payload| payload.get());
        let mut new = NewRecurring::raw(self.kind, payload, self.key, self.cadence.parse()?);
        if let Some(misfire) = self.misfire {
            new = new.misfire(misfire.parse()?);
        }
        if let Some(queue) = self.queue {
            new = new.queue(queue);
        }
        if let Some(priority) = self.priority {
            new = new.priority(priority);
        }
        if let Some(max) = self.max_attempts {
            new = new.max_attempts(max);
        }
        if let Some(timeout) = self.timeout_ms {
            new = new.timeout(limits::span("timeout_ms", Some(Duration::from_millis(timeout)))?);
        }
        if let Some(metadata) = self.metadata {
            new = new.metadata_raw(metadata.get());
        }
        if let Some(at) = self.first_at {
            new = new.first_at(parse_time("first_at", &at)?);
        }
        Ok(new)
    }
}

/// Creates a recurring job. If its kind has one with this key, that is enabled and gets this definition: a changed cadence is
/// planned anew, otherwise the time of the next run stays, or is now if it has passed. Safe to send again.
#[utoipa::path(post, path = "/recurring", tag = "recurring", request_body = RecurringToCreate,
    responses((status = 201, description = "It was created", body = RecurringInFull), (status = 200, description = "It existed, is enabled and has this definition", body = RecurringInFull), ErrorResponses, BodyErrorResponses))]
pub(crate) async fn create_recurring(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Body(new): Body<RecurringToCreate>,
) -> Result<(StatusCode, Json<RecurringInFull>), Problem> {
    caller.check(Permission::Enqueue)?;
    let recurring = pitwheel.acting_as(caller.name()).recurring();
    let created = recurring.create(new.into_new()?).await?;
    let status = if created.is_new { StatusCode::CREATED } else { StatusCode::OK };
    let detail = recurring.get(created.id).await?;
    Ok((status, Json(RecurringInFull::new(detail, caller.needs_redaction()))))
}

/// Shows one recurring job, with its payload.
#[utoipa::path(get, path = "/recurring/{id}", tag = "recurring", params(("id" = i64, Path, description = "The id of the recurring job")),
    responses((status = 200, description = "The recurring job", body = RecurringInFull), ErrorResponses))]
pub(crate) async fn show_recurring(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Path(id): Path<i64>,
) -> Result<Json<RecurringInFull>, Problem> {
    caller.check(Permission::ViewJob)?;
    Ok(Json(RecurringInFull::new(pitwheel.recurring().get(id).await?, caller.needs_redaction())))
}

/// Deletes a recurring job. A run in progress finishes; nothing follows it.
#[utoipa::path(delete, path = "/recurring/{id}", tag = "recurring", params(("id" = i64, Path, description = "The id of the recurring job")),
    responses((status = 204, description = "It was deleted"), ErrorResponses))]
pub(crate) async fn delete_recurring(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Path(id): Path<i64>,
) -> Result<StatusCode, Problem> {
    caller.check(Permission::Operate)?;
    if pitwheel.acting_as(caller.name()).recurring().delete(id).await? {
        return Ok(StatusCode::NO_CONTENT);
    }
    Err(Problem::not_found(format!("there is no recurring job {id}: GET /api/v1/recurring lists them")))
}

/// Enables a recurring job: it runs at the time that was kept, or now if it has passed.
#[utoipa::path(post, path = "/recurring/{id}/enable", tag = "recurring", params(("id" = i64, Path, description = "The id of the recurring job")),
    responses((status = 200, description = "The recurring job", body = RecurringLine), ErrorResponses))]
pub(crate) async fn enable_recurring(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Path(id): Path<i64>,
) -> Result<Json<RecurringLine>, Problem> {
    caller.check(Permission::Operate)?;
    let recurring = pitwheel.acting_as(caller.name()).recurring().enable(id).await?;
    Ok(Json(RecurringLine::new(recurring, caller.needs_redaction())))
}

/// Disables a recurring job: no run starts after this. A run in progress finishes. The time of the next run is kept.
#[utoipa::path(post, path = "/recurring/{id}/disable", tag = "recurring", params(("id" = i64, Path, description = "The id of the recurring job")),
    responses((status = 200, description = "The recurring job", body = RecurringLine), ErrorResponses))]
pub(crate) async fn disable_recurring(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Path(id): Path<i64>,
) -> Result<Json<RecurringLine>, Problem> {
    caller.check(Permission::Operate)?;
    let recurring = pitwheel.acting_as(caller.name()).recurring().disable(id).await?;
    Ok(Json(RecurringLine::new(recurring, caller.needs_redaction())))
}

/// What became of a request to run now.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RunNowResponse {
    id: i64,
    /// `due`: its next run is due now. `running`: a run is in progress, and nothing was changed.
    #[schema(value_type = schemas::RunNow, example = "due")]
    outcome: &'static str,
}

/// Makes the next run due now, in addition to the planned ones.
#[utoipa::path(post, path = "/recurring/{id}/run", tag = "recurring", params(("id" = i64, Path, description = "The id of the recurring job")),
    responses((status = 200, description = "What became of it", body = RunNowResponse), ErrorResponses))]
pub(crate) async fn run_recurring(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Path(id): Path<i64>,
) -> Result<Json<RunNowResponse>, Problem> {
    caller.check(Permission::Operate)?;
    let run = pitwheel.acting_as(caller.name()).recurring().run_now(id).await?;
    let outcome = match run {
        RunNow::Due => "due",
        RunNow::Running => "running",
    };
    Ok(Json(RunNowResponse { id, outcome }))
}

/// Another cadence.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CadenceChange {
    /// `every 15m`, `cron 30 2 * * 1-5 Europe/Zurich` or `adaptive 15m..24h`, each with an optional `jitter 30s`.
    #[schema(example = "cron 30 2 * * * Europe/Zurich")]
    cadence: String,
    /// `skip`, `one` or `all`; default: it stays.
    #[schema(value_type = Option<schemas::Misfire>)]
    misfire: Option<String>,
}

/// Gives a recurring job another cadence. It is planned anew, one interval from now; a run in progress finishes.
#[utoipa::path(put, path = "/recurring/{id}/cadence", tag = "recurring", params(("id" = i64, Path, description = "The id of the recurring job")), request_body = CadenceChange,
    responses((status = 200, description = "The recurring job", body = RecurringLine), ErrorResponses, BodyErrorResponses))]
pub(crate) async fn change_cadence(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Path(id): Path<i64>,
    Body(change): Body<CadenceChange>,
) -> Result<Json<RecurringLine>, Problem> {
    caller.check(Permission::Operate)?;
    let misfire: Option<Misfire> = change.misfire.map(|misfire| misfire.parse()).transpose()?;
    let recurring = pitwheel.acting_as(caller.name()).recurring();
    let changed = recurring.change(id, &change.cadence.parse()?, misfire).await?;
    Ok(Json(RecurringLine::new(changed, caller.needs_redaction())))
}

/// How many times.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct TimesQuery {
    /// 1 to 1,000, default 5.
    #[param(minimum = 1, maximum = 1000)]
    count: Option<u32>,
}

/// The next times.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct NextTimes {
    /// In UTC (RFC 3339).
    times: Vec<String>,
}

/// The next times at which a recurring job runs, as if it stayed as it is; after the first without jitter.
#[utoipa::path(get, path = "/recurring/{id}/times", tag = "recurring", params(("id" = i64, Path, description = "The id of the recurring job"), TimesQuery),
    responses((status = 200, description = "The next times", body = NextTimes), ErrorResponses))]
pub(crate) async fn next_times(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Path(id): Path<i64>,
    Query(query): Query<TimesQuery>,
) -> Result<Json<NextTimes>, Problem> {
    caller.check(Permission::View)?;
    let count = query.count.unwrap_or(5) as usize;
    if count == 0 {
        return Err(Problem::invalid("`count` is 0: ask for 1 to 1,000 times"));
    }
    let times = pitwheel.recurring().next_times(id, count).await?;
    Ok(Json(NextTimes { times: times.into_iter().map(time).collect() }))
}

/// Which page of runs.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunsQuery {
    /// Only ids below this one: `next` of the previous page.
    before: Option<i64>,
    /// Runs of a page: 1 to 1,000, default 50.
    #[param(minimum = 1, maximum = 1000)]
    #[serde(default, deserialize_with = "page_limit")]
    limit: Option<u32>,
}

/// One page of runs.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Runs {
    /// Newest first, the live one included.
    runs: Vec<JobLine>,
    /// Pass this as `before` to get the next page; null: this is the last page.
    next: Option<i64>,
}

/// Lists the runs of a recurring job, as long as the history keeps them.
#[utoipa::path(get, path = "/recurring/{id}/runs", tag = "recurring", params(("id" = i64, Path, description = "The id of the recurring job"), RunsQuery),
    responses((status = 200, description = "One page of runs", body = Runs), ErrorResponses))]
pub(crate) async fn list_runs(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Path(id): Path<i64>,
    Query(query): Query<RunsQuery>,
) -> Result<Json<Runs>, Problem> {
    caller.check(Permission::View)?;
    let limit = query.limit.unwrap_or(50) as usize;
    let runs = pitwheel.recurring().runs(id, query.before, limit).await?;
    let next = runs.last().map(|run| run.id).filter(|_| runs.len() == limit);
    let redact = caller.needs_redaction();
    Ok(Json(Runs { runs: runs.into_iter().map(|run| JobLine::new(run, redact)).collect(), next }))
}
