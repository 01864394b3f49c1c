//! The statements for recurring jobs: create, enable, disable, change, run now, delete, and lists.

use std::time::{Duration, SystemTime};

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::engine::enqueue::{micros, millis, unsigned};
use crate::engine::recurring::time;
use crate::error::Error;
use crate::job::cadence::Cadence;
use crate::job::limits::ENQUEUE_MAX;
use crate::job::misfire::Misfire;
use crate::job::new_job::{check_key, check_name};
use crate::job::new_recurring::NewRecurring;
use crate::job::recurrence::{NextRun, Plan, changed_plan, first_plan, next_times};
use crate::operate::jobs::{JobSummary, summary};
use crate::operate::page::page;
use crate::operate::recurring_columns::NewColumns;
use crate::postgres::{Params, Sql, query};

/// A page with a filter scans at most this many rows, then returns a cursor.
const WINDOW: i64 = 10_000;
/// The most times that are listed ahead.
const TIMES_MAX: usize = 1000;
pub(crate) const CREATE: &str = include_str!("../../sql/operate/create_recurring.sql");
pub(crate) const ENABLE: &str = include_str!("../../sql/operate/enable_recurring.sql");
pub(crate) const DISABLE: &str = include_str!("../../sql/operate/disable_recurring.sql");
/// Why a recurring job was not found.
pub(crate) const MISSING: &str = "no recurring job has this id";

/// The result of creating a recurring job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Created {
    /// Its id.
    pub id: i64,
    /// False: the kind had one with this key already. It is enabled, and has the new definition.
    pub is_new: bool,
    /// When it runs next, or when the run in progress was due.
    pub next_run: Option<NextRun>,
    /// The queue, if the next run is due now.
    pub(crate) due: Option<String>,
}

/// What happens when a recurring job is to run now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunNow {
    /// Its next run is due now.
    Due,
    /// A run is in progress; nothing was changed.
    Running,
}

/// A recurring job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecurringJob {
    /// Its id.
    pub id: i64,
    /// The kind of its runs.
    pub kind: String,
    /// Its key: a kind has one recurring job with this key.
    pub key: String,
    /// The queue that its runs wait in.
    pub queue: String,
    /// The priority of its runs: -9 to 9, higher first.
    pub priority: i16,
    /// How long an attempt may take; `None`: without limit.
    pub timeout: Option<Duration>,
    /// The maximum number of attempts of one run; `None`: without limit.
    pub max_attempts: Option<u32>,
    /// When it runs, as text: see [`Cadence`].
    pub cadence: String,
    /// What becomes of planned times at which it could not run.
    pub misfire: Misfire,
    /// Whether it runs.
    pub enabled: bool,
    /// Whether a run is in progress.
    pub running: bool,
    /// When its next run is due, or the one in progress was; kept while it is disabled. `None`: a node is yet to plan it.
    pub next_run_at: Option<SystemTime>,
    /// Why it runs next at that time, for people. `None`: not known.
    pub reason: Option<String>,
    /// The current interval of an adaptive cadence.
    pub interval: Option<Duration>,
    /// The number of its runs so far.
    pub runs: i64,
    /// The number of planned times that were not run.
    pub skipped: i64,
    /// When its last run ended.
    pub last_run_at: Option<SystemTime>,
    /// The error of its last attempt, if that failed.
    pub last_error: Option<String>,
    /// How many attempts in a row have failed.
    pub consecutive_failures: u32,
    /// When it was created.
    pub created_at: SystemTime,
    /// When its definition was last changed.
    pub updated_at: SystemTime,
    /// Whether its kind is redacted (`docs/glossary.md`). Servers hide its values from some callers; the library hides nothing.
    pub redacted: bool,
}

/// A recurring job with its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecurringDetail {
    /// The columns of a list.
    pub summary: RecurringJob,
    /// The payload of its runs, as JSON text.
    pub payload: String,
    /// The metadata of its runs, as JSON text.
    pub metadata: Option<String>,
    pub(crate) anchor_at: SystemTime,
    /// The time by the database's clock when it was read.
    pub(crate) now: SystemTime,
}

/// Which recurring jobs to list. The default is the newest 50.
#[derive(Debug, Clone, Default)]
pub struct RecurringFilter {
    /// Only this kind.
    pub kind: Option<String>,
    /// Only this queue.
    pub queue: Option<String>,
    /// Only enabled, or only disabled ones.
    pub enabled: Option<bool>,
    /// Only ids below this one: the cursor of the page before.
    pub before: Option<i64>,
    /// Recurring jobs per page, at most 1,000; 0 means 50.
    pub limit: usize,
}

/// One page of a list of recurring jobs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RecurringPage {
    /// The recurring jobs, newest first; fewer than the limit, even none, when few of the scanned rows match.
    pub recurring: Vec<RecurringJob>,
    /// The cursor of the next page, for [`RecurringFilter::before`]; `None`: this is the last page.
    pub next: Option<i64>,
}

/// The result of a change.
#[cfg_attr(
    not(feature = "tokio-postgres"),
    expect(dead_code, reason = "only the transactions of tokio-postgres return all of it")
)]
pub(crate) struct Changed {
    pub(crate) changed: bool,
    pub(crate) next_run: Option<NextRun>,
    /// The queue, if the next run is due now.
    pub(crate) due: Option<String>,
}

/// Creates recurring jobs, 500 per statement.
pub(crate) async fn create(
    client: &impl Sql,
    actor: Option<&str>,
    new: &[NewRecurring],
) -> Result<Vec<Created>, Error> {
    new.iter().try_for_each(NewRecurring::check)?;
    let mut created = Vec::with_capacity(new.len());
    for batch in new.chunks(ENQUEUE_MAX) {
        let now = now(client).await?;
        let plans = batch.iter().map(|new| plans(new, now)).collect::<Result<Vec<_>, Error>>()?;
        let columns = NewColumns::new(batch, &plans);
        let rows = query(client, CREATE, &columns.params(&actor)).await?;
        created.extend(rows.iter().map(|row| Created {
            id: row.get("id"),
            is_new: row.get("is_new"),
            next_run: next_run(row.get("next_us"), row.get("reason")),
            due: due(row),
        }));
    }
    Ok(created)
}

/// The only result.
pub(crate) fn only(created: Vec<Created>) -> Result<Created, Error> {
    created.into_iter().next().ok_or_else(|| Error::Invalid("the statement returned no row".into()))
}

/// When it runs first, and when it runs next if it exists with another cadence.
pub(crate) fn plans(new: &NewRecurring, now: SystemTime) -> Result<(Plan, Plan), Error> {
    let random = fastrand::f64();
    let first = first_plan(&new.cadence, new.first_at, now, random).ok_or_else(no_time)?;
    let changed = match new.first_at {
        Some(_) => first.clone(),
        None => changed_plan(&new.cadence, now, random).ok_or_else(no_time)?,
    };
    Ok((first, changed))
}

fn no_time() -> Error {
    Error::Invalid("cadence never matches a future time: change it".into())
}

pub(crate) async fn now(client: &impl Sql) -> Result<SystemTime, Error> {
    let rows = query(client, include_str!("../../sql/engine/now.sql"), &[]).await?;
    rows.first().map(|row| row.get(0)).ok_or_else(|| Error::Invalid("the clock returned no row".into()))
}

pub(crate) async fn enable(client: &impl Sql, actor: Option<&str>, id: i64) -> Result<Changed, Error> {
    changed(id, &query(client, ENABLE, &[(&id, Type::INT8), (&actor, Type::TEXT)]).await?)
}

pub(crate) async fn disable(client: &impl Sql, actor: Option<&str>, id: i64) -> Result<Changed, Error> {
    changed(id, &query(client, DISABLE, &[(&id, Type::INT8), (&actor, Type::TEXT)]).await?)
}

pub(crate) async fn change(
    client: &impl Sql,
    actor: &str,
    id: i64,
    cadence: &Cadence,
    misfire: Option<Misfire>,
) -> Result<Changed, Error> {
    let plan = changed_plan(cadence, now(client).await?, fastrand::f64()).ok_or_else(no_time)?;
    let params: Params = &[
        (&id, Type::INT8),
        (&actor, Type::TEXT),
        (&cadence.to_string(), Type::TEXT),
        (&misfire.map(Misfire::as_str), Type::TEXT),
        (&micros(plan.next_run_at), Type::INT8),
        (&micros(plan.anchor_at), Type::INT8),
        (&plan.interval.map(millis), Type::INT8),
    ];
    changed(id, &query(client, include_str!("../../sql/operate/change_recurring.sql"), params).await?)
}

fn changed(id: i64, rows: &[Row]) -> Result<Changed, Error> {
    let row = rows.first().ok_or(Error::NotFound(id, MISSING))?;
    let next_run = next_run(row.get("next_us"), row.get("reason"));
    Ok(Changed { changed: row.get("changed"), next_run, due: due(row) })
}

/// The next run as the statements return it.
pub(crate) fn next_run(us: Option<i64>, reason: Option<String>) -> Option<NextRun> {
    us.map(|us| NextRun { at: time(us), reason: reason.unwrap_or_default() })
}

fn due(row: &Row) -> Option<String> {
    row.get::<_, bool>("due").then(|| row.get("queue"))
}

/// Returns the queue too.
pub(crate) async fn run_now(client: &impl Sql, actor: &str, id: i64) -> Result<(RunNow, String), Error> {
    let params: Params = &[(&id, Type::INT8), (&actor, Type::TEXT)];
    let rows = query(client, include_str!("../../sql/operate/run_recurring.sql"), params).await?;
    let row = rows.first().ok_or(Error::NotFound(id, MISSING))?;
    match (row.get("changed"), row.get("enabled")) {
        (true, _) => Ok((RunNow::Due, row.get("queue"))),
        (false, true) => Ok((RunNow::Running, row.get("queue"))),
        (false, false) => Err(Error::Invalid(format!("recurring job {id} is disabled: enable it first"))),
    }
}

pub(crate) async fn delete(client: &impl Sql, actor: &str, id: i64) -> Result<bool, Error> {
    let params: Params = &[(&id, Type::INT8), (&actor, Type::TEXT)];
    let rows = query(client, include_str!("../../sql/operate/delete_recurring.sql"), params).await?;
    Ok(!rows.is_empty())
}

pub(crate) async fn get(client: &impl Sql, id: i64) -> Result<RecurringDetail, Error> {
    let none: Option<&str> = None;
    let params: Params = &[(&id, Type::INT8), (&none, Type::TEXT), (&none, Type::TEXT)];
    let rows = query(client, include_str!("../../sql/operate/recurring.sql"), params).await?;
    detail(rows.first().ok_or(Error::NotFound(id, MISSING))?)
}

pub(crate) async fn find(client: &impl Sql, kind: &str, key: &str) -> Result<Option<RecurringDetail>, Error> {
    check_name("kind", kind)?;
    check_key(key)?;
    let none: Option<i64> = None;
    let params: Params = &[(&none, Type::INT8), (&kind, Type::TEXT), (&key, Type::TEXT)];
    let rows = query(client, include_str!("../../sql/operate/recurring.sql"), params).await?;
    rows.first().map(detail).transpose()
}

pub(crate) async fn list(client: &impl Sql, filter: &RecurringFilter) -> Result<RecurringPage, Error> {
    filter.kind.as_deref().map_or(Ok(()), |kind| check_name("kind", kind))?;
    filter.queue.as_deref().map_or(Ok(()), |queue| check_name("queue", queue))?;
    let (before, limit) = page(filter.before, filter.limit)?;
    let all = filter.kind.is_none() && filter.queue.is_none() && filter.enabled.is_none();
    let window = if all { limit } else { WINDOW };
    let params: Params = &[
        (&before, Type::INT8),
        (&filter.kind, Type::TEXT),
        (&filter.queue, Type::TEXT),
        (&filter.enabled, Type::BOOL),
        (&limit, Type::INT8),
        (&window, Type::INT8),
    ];
    let rows = query(client, include_str!("../../sql/operate/recurring_list.sql"), params).await?;
    let floor: Option<i64> = rows.first().and_then(|row| row.get("floor"));
    let found = rows.iter().filter(|row| row.get::<_, Option<i64>>("id").is_some());
    let recurring = found.map(job).collect::<Result<Vec<RecurringJob>, Error>>()?;
    let last = recurring.last().map(|job| job.id).filter(|_| recurring.len() as i64 == limit);
    Ok(RecurringPage { recurring, next: last.or(floor) })
}

pub(crate) async fn runs(
    client: &impl Sql,
    id: i64,
    before: Option<i64>,
    limit: usize,
) -> Result<Vec<JobSummary>, Error> {
    let (before, limit) = page(before, limit)?;
    let params: Params = &[(&id, Type::INT8), (&before, Type::INT8), (&limit, Type::INT8)];
    let rows = query(client, include_str!("../../sql/operate/recurring_runs.sql"), params).await?;
    rows.iter().map(summary).collect()
}

/// The next times by the cadence, without jitter after the first; an adaptive one by its current interval.
pub(crate) fn times(detail: &RecurringDetail, count: usize) -> Result<Vec<SystemTime>, Error> {
    if count > TIMES_MAX {
        return Err(Error::Invalid(format!("{count} times are too many: ask for at most {TIMES_MAX}")));
    }
    let cadence: Cadence = detail.summary.cadence.parse()?;
    let first = detail.summary.next_run_at.map(|at| at.max(detail.now));
    let from = (first, detail.anchor_at, detail.now);
    Ok(next_times(&cadence, from, detail.summary.interval, count))
}

fn detail(row: &Row) -> Result<RecurringDetail, Error> {
    Ok(RecurringDetail {
        summary: job(row)?,
        payload: row.get("payload"),
        metadata: row.get("metadata"),
        anchor_at: time(row.get("anchor_us")),
        now: row.get("now"),
    })
}

fn job(row: &Row) -> Result<RecurringJob, Error> {
    let span = |column: &str| {
        let ms: Option<i64> = row.get(column);
        ms.map(|ms| Duration::from_millis(ms.unsigned_abs()))
    };
    Ok(RecurringJob {
        id: row.get("id"),
        kind: row.get("kind"),
        key: row.get("key"),
        queue: row.get("queue"),
        priority: row.get("priority"),
        timeout: span("timeout_ms"),
        max_attempts: row.get::<_, Option<i32>>("max_attempts").map(unsigned),
        cadence: row.get("cadence"),
        misfire: row.get::<_, &str>("misfire").parse()?,
        enabled: row.get("enabled"),
        running: row.get("running"),
        next_run_at: row.get("next_run_at"),
        reason: row.get("reason"),
        interval: span("interval_ms"),
        runs: row.get("runs"),
        skipped: row.get("skipped"),
        last_run_at: row.get("last_run_at"),
        last_error: row.get("last_error"),
        consecutive_failures: unsigned(row.get("consecutive_failures")),
        created_at: row.get("created_at"),
        updated_at: row.get("updated_at"),
        redacted: row.get("redacted"),
    })
}
