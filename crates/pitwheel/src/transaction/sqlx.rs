//! For [sqlx](https://docs.rs/sqlx).

use ::sqlx::postgres::{PgArguments, PgRow};
use ::sqlx::{PgConnection, Postgres, Row};

use crate::engine::enqueue::{Columns, ENQUEUE, ENQUEUE_KEYED, Enqueued, Enqueuing, Inserted};
use crate::engine::lease::PROGRESS;
use crate::engine::outbox::add::{self, ADD_EVENTS, LOCK_ENTITIES};
use crate::engine::recurring::time;
use crate::engine::settle::{FINISH, LOCK_CLAIM};
use crate::engine::settle_columns::{Finish, Plans};
use crate::engine::settle_runs::FINISH_RUNS;
use crate::error::Error;
use crate::job::claim::Settled;
use crate::job::ending::{Completion, Verdict};
use crate::job::new_event::NewEvent;
use crate::job::new_job::NewJob;
use crate::job::new_pipeline::NewPipeline;
use crate::job::new_recurring::NewRecurring;
use crate::job::recurrence::NextRun;
use crate::operate::pipeline;
use crate::operate::pipeline_definition::definition;
use crate::operate::recurring::{CREATE, Created, DISABLE, ENABLE, MISSING, next_run, plans};
use crate::operate::recurring_columns::NewColumns;
use crate::transaction::completed::Completed;
use crate::worker::context::Context;

const NOW_US: &str = include_str!("../../sql/engine/now_us.sql");

/// Enqueues in the transaction (`&mut *tx`). A duplicate key returns the live job and does not fail the transaction.
pub async fn enqueue<T: Into<NewJob>>(
    transaction: &mut PgConnection,
    jobs: impl IntoIterator<Item = T>,
) -> Result<Vec<Enqueued>, Error> {
    let jobs: Vec<NewJob> = jobs.into_iter().map(Into::into).collect();
    let mut enqueuing = Enqueuing::new(&jobs)?;
    while let Some(columns) = enqueuing.next()? {
        enqueuing.inserted(send(transaction, columns).await?);
    }
    Ok(enqueuing.finish())
}

/// Adds events to the outbox in the transaction (`&mut *tx`). They are delivered when it has committed. Returns their ids, in the
/// order given. To keep the order of an entity, lock it first: its row in a table of yours, or [`lock_entities`].
pub async fn add_events(
    transaction: &mut PgConnection,
    events: impl IntoIterator<Item = NewEvent>,
) -> Result<Vec<i64>, Error> {
    let events: Vec<NewEvent> = events.into_iter().collect();
    let mut ids = Vec::with_capacity(events.len());
    for batch in add::batches(&events)? {
        let query = ::sqlx::query(ADD_EVENTS)
            .bind(batch.entity_keys)
            .bind(batch.topics)
            .bind(batch.kinds)
            .bind(batch.payloads)
            .bind(batch.headers);
        let rows = query.persistent(false).fetch_all(&mut *transaction).await?;
        for row in &rows {
            ids.push(row.try_get(0)?);
        }
    }
    Ok(ids)
}

/// Locks entities in the transaction (`&mut *tx`) until it ends, at most 1,000 at a time: another one that locks one of them waits.
/// Events that are added after this have ids in the order of the commits.
pub async fn lock_entities(transaction: &mut PgConnection, keys: &[&str]) -> Result<(), Error> {
    add::check_keys(keys)?;
    let query = ::sqlx::query(LOCK_ENTITIES).bind(keys);
    query.persistent(false).execute(transaction).await?;
    Ok(())
}

/// Completes the handler's job in the transaction (`&mut *tx`), with the followers that [`Context::then`] named. Then return
/// `Ok(())`: if the transaction did not commit after all, the attempt counts as failed.
pub async fn complete(transaction: &mut PgConnection, context: &Context) -> Result<Settled, Error> {
    Ok(complete_with(transaction, context, Verdict::complete()).await?.settled)
}

/// Completes the handler's job like [`complete`], with a result, further followers, or what a run says about the next one.
/// Returns also when the recurring job runs next.
pub async fn complete_with(
    transaction: &mut PgConnection,
    context: &Context,
    completion: Completion,
) -> Result<Completed, Error> {
    let completed = context.complete_in_transaction(completion)?;
    let (claim, mut columns, mut plans) = (completed.claim, Finish::default(), Plans::default());
    columns.push(claim, &completed.ending);
    plans.push(completed.plan.as_deref());
    let lock =
        ::sqlx::query(LOCK_CLAIM).bind(claim.id).bind(claim.fence).bind(claim.holder).persistent(false);
    let locked = lock.fetch_optional(&mut *transaction).await?;
    let run: Option<i64> = locked.map(|row| row.try_get(0)).transpose()?.flatten();
    if let Some((fraction, note)) = completed.kept_progress() {
        let progress = ::sqlx::query(PROGRESS).bind(vec![claim.id]).bind(vec![claim.fence]);
        let progress = progress.bind(vec![claim.holder]).bind(vec![fraction]).bind(vec![note]);
        progress.persistent(false).execute(&mut *transaction).await?;
    }
    let steps = std::mem::take(&mut columns.followers.steps);
    let query = ::sqlx::query(if run.is_some() { FINISH_RUNS } else { FINISH })
        .bind(columns.claims.ids)
        .bind(columns.claims.fences)
        .bind(columns.states)
        .bind(columns.errors)
        .bind(columns.results)
        .bind(columns.emptied)
        .bind(columns.followed.ids)
        .bind(columns.followed.fences);
    let lanes = std::mem::take(&mut columns.followers.lanes);
    let lane_passes = std::mem::take(&mut columns.followers.lane_passes);
    let mut query = bind(query, columns.followers, true)
        .bind(columns.if_cancelled)
        .bind(columns.claims.holders)
        .bind(columns.followed.holders)
        .bind(lanes)
        .bind(lane_passes);
    if run.is_some() {
        query = query
            .bind(plans.versions)
            .bind(plans.next_us)
            .bind(plans.anchors_us)
            .bind(plans.reasons)
            .bind(plans.intervals_ms)
            .bind(plans.skipped);
    } else {
        query = query.bind(steps);
    }
    let rows = query.persistent(false).fetch_all(transaction).await?;
    let Some(row) = rows.first().filter(|row| row.try_get(3).unwrap_or(false)) else {
        return Ok(Completed::LOST);
    };
    let next = if run.is_some() { next_run(row.try_get(4)?, row.try_get(5)?) } else { None };
    Ok(Completed::written(next))
}

/// Creates a pipeline in the transaction (`&mut *tx`), like [`Pipelines::create`](crate::Pipelines::create). Returns its id. Its first
/// jobs are visible to workers when the transaction has committed.
pub async fn create_pipeline(transaction: &mut PgConnection, new: &NewPipeline) -> Result<i64, Error> {
    let query = ::sqlx::query(pipeline::CREATE).bind(vec![definition(new)?]).persistent(false);
    Ok(query.fetch_one(transaction).await?.try_get(0)?)
}

/// Creates a recurring job in the transaction (`&mut *tx`), like [`RecurringJobs::create`](crate::RecurringJobs::create). Its row
/// stays locked until the transaction ends.
pub async fn create_recurring(
    transaction: &mut PgConnection,
    recurring: &NewRecurring,
) -> Result<Created, Error> {
    recurring.check()?;
    let now: i64 = ::sqlx::query(NOW_US).persistent(false).fetch_one(&mut *transaction).await?.try_get(0)?;
    let plans = [plans(recurring, time(now))?];
    let columns = NewColumns::new(std::slice::from_ref(recurring), &plans);
    let query = ::sqlx::query(CREATE)
        .bind(columns.kinds)
        .bind(columns.keys)
        .bind(columns.cadences)
        .bind(columns.payloads)
        .bind(columns.misfires)
        .bind(columns.queues)
        .bind(columns.priorities)
        .bind(columns.max_attempts)
        .bind(columns.timeouts_ms)
        .bind(columns.metadata)
        .bind(columns.first_us)
        .bind(columns.first_anchors_us)
        .bind(columns.changed_us)
        .bind(columns.changed_anchors_us)
        .bind(columns.intervals_ms)
        .bind(None::<String>);
    let row = query.persistent(false).fetch_one(transaction).await?;
    let next_run = next_run(row.try_get(2)?, row.try_get(3)?);
    Ok(Created { id: row.try_get(0)?, is_new: row.try_get(1)?, next_run, due: None })
}

/// Enables a recurring job in the transaction (`&mut *tx`), like [`RecurringJobs::enable`](crate::RecurringJobs::enable). Its row
/// stays locked until the transaction ends. Returns when it runs next; `None`: a node is yet to plan it.
pub async fn enable_recurring(transaction: &mut PgConnection, id: i64) -> Result<Option<NextRun>, Error> {
    let row = change(transaction, ENABLE, id).await?;
    Ok(next_run(row.try_get(2)?, row.try_get(3)?))
}

/// Disables a recurring job in the transaction (`&mut *tx`), like [`RecurringJobs::disable`](crate::RecurringJobs::disable). Its
/// row stays locked until the transaction ends. False: it was disabled already.
pub async fn disable_recurring(transaction: &mut PgConnection, id: i64) -> Result<bool, Error> {
    Ok(change(transaction, DISABLE, id).await?.try_get(0)?)
}

async fn change(transaction: &mut PgConnection, sql: &'static str, id: i64) -> Result<PgRow, Error> {
    let query = ::sqlx::query(sql).bind(id).bind(None::<String>).persistent(false);
    query.fetch_optional(transaction).await?.ok_or(Error::NotFound(id, MISSING))
}

async fn send(transaction: &mut PgConnection, mut columns: Columns<'_>) -> Result<Vec<Inserted>, Error> {
    let keyed = columns.keyed();
    let lanes = std::mem::take(&mut columns.lanes);
    let lane_passes = std::mem::take(&mut columns.lane_passes);
    let mut query = bind(::sqlx::query(if keyed { ENQUEUE_KEYED } else { ENQUEUE }), columns, keyed);
    if keyed {
        // Lanes are not promoted in a user's transaction: until it commits, no other session could promote them.
        query = query.bind(lanes).bind(lane_passes).bind(false);
    }
    let rows = query.persistent(false).fetch_all(transaction).await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

type Query<'q> = ::sqlx::query::Query<'q, Postgres, PgArguments>;

/// Binds the columns of new jobs, in the order of the statements.
fn bind<'q>(query: Query<'q>, columns: Columns<'q>, keyed: bool) -> Query<'q> {
    let query = query
        .bind(columns.kinds)
        .bind(columns.payloads)
        .bind(columns.queues)
        .bind(columns.delays_ms)
        .bind(columns.run_ats_us)
        .bind(columns.priorities)
        .bind(columns.max_attempts)
        .bind(columns.timeouts_ms)
        .bind(columns.metadata);
    if keyed { query.bind(columns.keys) } else { query }
}
