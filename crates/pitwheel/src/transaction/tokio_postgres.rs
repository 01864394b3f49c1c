//! For [tokio-postgres](https://docs.rs/tokio-postgres).

use ::tokio_postgres::Transaction;
use ::tokio_postgres::types::Type;

use crate::engine::enqueue::{self, Enqueued, Enqueuing};
use crate::engine::settle::{FINISH, Finish, LOCK_CLAIM};
use crate::error::Error;
use crate::job::claim::Settled;
use crate::job::new_job::NewJob;
use crate::worker::context::Context;

/// Enqueues in the transaction. A duplicate key returns the live job and does not fail the transaction.
pub async fn enqueue<T: Into<NewJob>>(
    transaction: &Transaction<'_>,
    jobs: impl IntoIterator<Item = T>,
) -> Result<Vec<Enqueued>, Error> {
    let jobs: Vec<NewJob> = jobs.into_iter().map(Into::into).collect();
    let mut enqueuing = Enqueuing::new(&jobs)?;
    while let Some(columns) = enqueuing.next()? {
        enqueuing.inserted(enqueue::send(transaction.client(), columns).await?);
    }
    Ok(enqueuing.finish())
}

/// Completes the handler's job in the transaction, with the followers that [`Context::then`] named. Then return `Ok(())`: if
/// the transaction did not commit after all, the attempt counts as failed.
pub async fn complete(transaction: &Transaction<'_>, context: &Context) -> Result<Settled, Error> {
    let ending = context.complete_in_transaction()?;
    let mut columns = Finish::default();
    columns.push(context.claim(), &ending);
    let claim = context.claim();
    let locked =
        [(&claim.id as _, Type::INT8), (&claim.fence as _, Type::INT8), (&claim.holder as _, Type::INT8)];
    transaction.query_typed(LOCK_CLAIM, &locked).await?;
    let rows = transaction.query_typed(FINISH, &columns.params()).await?;
    let written = rows.first().is_some_and(|row| row.get(3));
    Ok(if written { Settled::Written } else { Settled::Lost })
}
