//! For [tokio-postgres](https://docs.rs/tokio-postgres).

use std::collections::HashMap;

use ::tokio_postgres::Transaction;
use ::tokio_postgres::types::{ToSql, Type};

use crate::engine::enqueue::{self, Enqueued, Enqueuing};
use crate::engine::lease::write_last_progress;
use crate::engine::outbox::add::{self, LOCK_ENTITIES};
use crate::engine::settle::{FINISH, LOCK_CLAIM};
use crate::engine::settle_columns::{Finish, Plans};
use crate::engine::settle_runs::FINISH_RUNS;
use crate::error::Error;
use crate::job::claim::Settled;
use crate::job::ending::{Completion, Settlement, Verdict};
use crate::job::new_event::NewEvent;
use crate::job::new_job::NewJob;
use crate::job::new_pipeline::NewPipeline;
use crate::job::new_recurring::NewRecurring;
use crate::job::recurrence::NextRun;
use crate::operate::pipeline;
use crate::operate::recurring::{self, Created};
use crate::transaction::completed::Completed;
use crate::worker::context::Context;

const LOCK_CLAIMS: &str = include_str!("../../sql/engine/lock_claims.sql");

/// Enqueues in the transaction. A duplicate key returns the live job and does not fail the transaction.
pub async fn enqueue<T: Into<NewJob>>(
    transaction: &Transaction<'_>,
    jobs: impl IntoIterator<Item = T>,
) -> Result<Vec<Enqueued>, Error> {
    let jobs: Vec<NewJob> = jobs.into_iter().map(Into::into).collect();
    let mut enqueuing = Enqueuing::new(&jobs)?;
    while let Some(columns) = enqueuing.next()? {
        enqueuing.inserted(enqueue::send(transaction.client(), columns, false).await?);
    }
    Ok(enqueuing.finish())
}

/// Adds events to the outbox in the transaction. They are delivered when it has committed. Returns their ids, in the order given.
/// To keep the order of an entity, lock it first: its row in a table of yours, or [`lock_entities`].
pub async fn add_events(
    transaction: &Transaction<'_>,
    events: impl IntoIterator<Item = NewEvent>,
) -> Result<Vec<i64>, Error> {
    let events: Vec<NewEvent> = events.into_iter().collect();
    let mut ids = Vec::with_capacity(events.len());
    for batch in add::batches(&events)? {
        ids.extend(add::send(transaction.client(), &batch).await?);
    }
    Ok(ids)
}

/// Locks entities in the transaction until it ends, at most 1,000 at a time: another one that locks one of them waits. Events that are
/// added after this have ids in the order of the commits.
pub async fn lock_entities(transaction: &Transaction<'_>, keys: &[&str]) -> Result<(), Error> {
    add::check_keys(keys)?;
    transaction.query_typed(LOCK_ENTITIES, &[(&keys, Type::TEXT_ARRAY)]).await?;
    Ok(())
}

/// Completes the handler's job in the transaction, with the followers that [`Context::then`] named. Then return `Ok(())`: if
/// the transaction did not commit after all, the attempt counts as failed.
pub async fn complete(transaction: &Transaction<'_>, context: &Context) -> Result<Settled, Error> {
    Ok(complete_with(transaction, context, Verdict::complete()).await?.settled)
}

/// Completes the handler's job like [`complete`], with a result, further followers, or what a run says about the next one.
/// Returns also when the recurring job runs next.
pub async fn complete_with(
    transaction: &Transaction<'_>,
    context: &Context,
    completion: Completion,
) -> Result<Completed, Error> {
    let completed = context.complete_in_transaction(completion)?;
    let (claim, mut columns, mut plans) = (completed.claim, Finish::default(), Plans::default());
    columns.push(claim, &completed.ending);
    plans.push(completed.plan.as_deref());
    let locked =
        [(&claim.id as _, Type::INT8), (&claim.fence as _, Type::INT8), (&claim.holder as _, Type::INT8)];
    let locked = transaction.query_typed(LOCK_CLAIM, &locked).await?;
    write_last_progress(transaction.client(), std::slice::from_ref(&completed)).await?;
    let is_run = locked.first().is_some_and(|row| row.get::<_, Option<i64>>(0).is_some());
    let rows = if is_run {
        let params: Vec<_> = columns.params().into_iter().chain(plans.params()).collect();
        transaction.query_typed(FINISH_RUNS, &params).await?
    } else {
        transaction.query_typed(FINISH, &columns.all_params()).await?
    };
    let Some(row) = rows.first().filter(|row| row.get(3)) else { return Ok(Completed::LOST) };
    Ok(Completed::written(if is_run { recurring::next_run(row.get(4), row.get(5)) } else { None }))
}

/// Completes the jobs of many handlers in one transaction, like [`complete_with`], in a fixed number of statements. The results
/// are in the order given. [`Settled::Lost`] concerns that job only: write nothing for it, and commit the others.
pub async fn complete_many(
    transaction: &Transaction<'_>,
    completions: Vec<(&Context, Completion)>,
) -> Result<Vec<Completed>, Error> {
    let count = completions.len();
    let completed = completions
        .into_iter()
        .map(|(context, completion)| context.complete_in_transaction(completion))
        .collect::<Result<Vec<Settlement>, Error>>()?;
    // One order for all, so that two transactions cannot wait for each other.
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_unstable_by_key(|&at| completed[at].claim.id);
    let column =
        |of: fn(&Settlement) -> i64| order.iter().map(|&at| of(&completed[at])).collect::<Vec<i64>>();
    let (ids, fences, holders) =
        (column(|one| one.claim.id), column(|one| one.claim.fence), column(|one| one.claim.holder));
    let claims = [&ids, &fences, &holders].map(|column| (column as &(dyn ToSql + Sync), Type::INT8_ARRAY));
    let locked = transaction.query_typed(LOCK_CLAIMS, &claims).await?;
    write_last_progress(transaction.client(), &completed).await?;
    let is_run: HashMap<i64, bool> =
        locked.iter().map(|row| (row.get(0), row.get::<_, Option<i64>>(1).is_some())).collect();
    let mut results = vec![Completed::LOST; count];
    for runs in [true, false] {
        let which: Vec<usize> =
            order.iter().copied().filter(|&at| is_run.get(&completed[at].claim.id) == Some(&runs)).collect();
        if which.is_empty() {
            continue;
        }
        let (mut columns, mut plans) = (Finish::default(), Plans::default());
        for &at in &which {
            columns.push(completed[at].claim, &completed[at].ending);
            plans.push(completed[at].plan.as_deref());
        }
        let rows = if runs {
            let params: Vec<_> = columns.params().into_iter().chain(plans.params()).collect();
            transaction.query_typed(FINISH_RUNS, &params).await?
        } else {
            transaction.query_typed(FINISH, &columns.all_params()).await?
        };
        for row in rows.iter().filter(|row| row.get(3)) {
            let id: i64 = row.get(0);
            let at = which.iter().copied().find(|&at| completed[at].claim.id == id);
            if let Some(at) = at {
                let next = if runs { recurring::next_run(row.get(4), row.get(5)) } else { None };
                results[at] = Completed::written(next);
            }
        }
    }
    Ok(results)
}

/// Creates a pipeline in the transaction, like [`Pipelines::create`](crate::Pipelines::create). Returns its id. Its first jobs are
/// visible to workers when the transaction has committed.
pub async fn create_pipeline(transaction: &Transaction<'_>, pipeline: &NewPipeline) -> Result<i64, Error> {
    let created = pipeline::create(transaction.client(), std::slice::from_ref(pipeline)).await?;
    pipeline::only(created).map(|created| created.id)
}

/// Creates a recurring job in the transaction, like [`RecurringJobs::create`](crate::RecurringJobs::create). Its row stays locked
/// until the transaction ends.
pub async fn create_recurring(
    transaction: &Transaction<'_>,
    recurring: &NewRecurring,
) -> Result<Created, Error> {
    recurring::only(recurring::create(transaction.client(), None, std::slice::from_ref(recurring)).await?)
}

/// Enables a recurring job in the transaction, like [`RecurringJobs::enable`](crate::RecurringJobs::enable). Its row stays locked until the transaction
/// ends. Returns when it runs next; `None`: that is not known before a run in progress has ended, or a node has planned it.
pub async fn enable_recurring(transaction: &Transaction<'_>, id: i64) -> Result<Option<NextRun>, Error> {
    recurring::enable(transaction.client(), None, id).await.map(|changed| changed.next_run)
}

/// Disables a recurring job in the transaction, like [`RecurringJobs::disable`](crate::RecurringJobs::disable). Its row stays
/// locked until the transaction ends. False: it was disabled already.
pub async fn disable_recurring(transaction: &Transaction<'_>, id: i64) -> Result<bool, Error> {
    recurring::disable(transaction.client(), None, id).await.map(|changed| changed.changed)
}
