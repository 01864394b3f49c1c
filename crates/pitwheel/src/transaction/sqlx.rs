//! For [sqlx](https://docs.rs/sqlx).

use ::sqlx::postgres::PgArguments;
use ::sqlx::{PgConnection, Postgres, Row};

use crate::engine::enqueue::{Columns, ENQUEUE, ENQUEUE_KEYED, Enqueued, Enqueuing, Inserted};
use crate::engine::settle::{FINISH, Finish, LOCK_CLAIM};
use crate::error::Error;
use crate::job::claim::Settled;
use crate::job::new_job::NewJob;
use crate::worker::context::Context;

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

/// Completes the handler's job in the transaction (`&mut *tx`), with the followers that [`Context::then`] named. Then return
/// `Ok(())`: if the transaction did not commit after all, the attempt counts as failed.
pub async fn complete(transaction: &mut PgConnection, context: &Context) -> Result<Settled, Error> {
    let ending = context.complete_in_transaction()?;
    let mut columns = Finish::default();
    columns.push(context.claim(), &ending);
    let claim = context.claim();
    let lock =
        ::sqlx::query(LOCK_CLAIM).bind(claim.id).bind(claim.fence).bind(claim.holder).persistent(false);
    lock.execute(&mut *transaction).await?;
    let query = ::sqlx::query(FINISH)
        .bind(columns.claims.ids)
        .bind(columns.claims.fences)
        .bind(columns.states)
        .bind(columns.errors)
        .bind(columns.results)
        .bind(columns.emptied)
        .bind(columns.followed.ids)
        .bind(columns.followed.fences);
    let query = bind(query, columns.followers, true)
        .bind(columns.if_cancelled)
        .bind(columns.claims.holders)
        .bind(columns.followed.holders);
    let rows = query.persistent(false).fetch_all(transaction).await?;
    let written = rows.first().map(|row| row.try_get(3)).transpose()?;
    Ok(if written == Some(true) { Settled::Written } else { Settled::Lost })
}

async fn send(transaction: &mut PgConnection, columns: Columns<'_>) -> Result<Vec<Inserted>, Error> {
    let keyed = columns.keyed();
    let query = ::sqlx::query(if keyed { ENQUEUE_KEYED } else { ENQUEUE });
    let rows = bind(query, columns, keyed).persistent(false).fetch_all(transaction).await?;
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
