//! Enqueue and complete inside your own transaction: they commit with your rows, or not at all.
//!
//! Pick the feature of the driver you use. Other drivers and languages call the SQL function `pitwheel.enqueue`.
//!
//! To complete a job with its effects, write the fenced completion first and look at its answer: a [`Settled::Lost`] means
//! that somebody else has the job, so roll back.
//!
//! [`Settled::Lost`]: crate::Settled::Lost

/// For [tokio-postgres](https://docs.rs/tokio-postgres).
#[cfg(feature = "tokio-postgres")]
pub mod tokio_postgres {
    use ::tokio_postgres::Transaction;
    use ::tokio_postgres::types::Type;

    use crate::enqueue::{self, Enqueued, Enqueuing};
    use crate::error::Error;
    use crate::handler::Context;
    use crate::job::NewJob;
    use crate::settle::{FINISH, Settled, done_state};

    /// Enqueues in the transaction. A duplicate key gives back the live job and does not fail the transaction.
    pub async fn enqueue<T: Into<NewJob>>(
        transaction: &Transaction<'_>,
        jobs: impl IntoIterator<Item = T>,
    ) -> Result<Vec<Enqueued>, Error> {
        let jobs: Vec<NewJob> = jobs.into_iter().map(Into::into).collect();
        let mut enqueuing = Enqueuing::new(&jobs)?;
        while let Some(columns) = enqueuing.next()? {
            enqueuing.answered(enqueue::send(transaction.client(), columns).await?);
        }
        Ok(enqueuing.finish())
    }

    /// Completes the handler's job in the transaction. Then return `Ok(())`: if the transaction did not commit after all,
    /// the attempt counts as failed.
    pub async fn complete(transaction: &Transaction<'_>, context: &Context) -> Result<Settled, Error> {
        context.settled_by_handler();
        let claim = context.claim();
        let nothing = vec![None::<&str>];
        let params: crate::db::Params = &[
            (&vec![claim.id], Type::INT8_ARRAY),
            (&vec![claim.fence], Type::INT8_ARRAY),
            (&vec![done_state(context.history())], Type::TEXT_ARRAY),
            (&nothing, Type::TEXT_ARRAY),
            (&nothing, Type::TEXT_ARRAY),
            (&Vec::<i64>::new(), Type::INT8_ARRAY),
        ];
        let rows = transaction.query_typed(FINISH, params).await?;
        Ok(if rows.is_empty() { Settled::Lost } else { Settled::Written })
    }
}

/// For [sqlx](https://docs.rs/sqlx).
#[cfg(feature = "sqlx")]
pub mod sqlx {
    use ::sqlx::{PgConnection, Row};

    use crate::enqueue::{Answer, Columns, ENQUEUE, ENQUEUE_KEYED, Enqueued, Enqueuing};
    use crate::error::Error;
    use crate::handler::Context;
    use crate::job::NewJob;
    use crate::settle::{FINISH, Settled, done_state};

    /// Enqueues in the transaction (`&mut *tx`). A duplicate key gives back the live job and does not fail the transaction.
    pub async fn enqueue<T: Into<NewJob>>(
        transaction: &mut PgConnection,
        jobs: impl IntoIterator<Item = T>,
    ) -> Result<Vec<Enqueued>, Error> {
        let jobs: Vec<NewJob> = jobs.into_iter().map(Into::into).collect();
        let mut enqueuing = Enqueuing::new(&jobs)?;
        while let Some(columns) = enqueuing.next()? {
            enqueuing.answered(send(transaction, columns).await?);
        }
        Ok(enqueuing.finish())
    }

    /// Completes the handler's job in the transaction (`&mut *tx`). Then return `Ok(())`: if the transaction did not commit
    /// after all, the attempt counts as failed.
    pub async fn complete(transaction: &mut PgConnection, context: &Context) -> Result<Settled, Error> {
        context.settled_by_handler();
        let claim = context.claim();
        let rows = ::sqlx::query(FINISH)
            .bind(vec![claim.id])
            .bind(vec![claim.fence])
            .bind(vec![done_state(context.history())])
            .bind(vec![None::<&str>])
            .bind(vec![None::<&str>])
            .bind(Vec::<i64>::new())
            .persistent(false)
            .fetch_all(transaction)
            .await?;
        Ok(if rows.is_empty() { Settled::Lost } else { Settled::Written })
    }

    async fn send(transaction: &mut PgConnection, columns: Columns<'_>) -> Result<Vec<Answer>, Error> {
        let keyed = columns.keyed();
        let query = ::sqlx::query(if keyed { ENQUEUE_KEYED } else { ENQUEUE })
            .bind(columns.kinds)
            .bind(columns.payloads)
            .bind(columns.queues)
            .bind(columns.delays_ms)
            .bind(columns.run_ats_us)
            .bind(columns.priorities)
            .bind(columns.max_attempts)
            .bind(columns.timeouts_ms)
            .bind(columns.metadata);
        let query = if keyed { query.bind(columns.keys) } else { query };
        let rows = query.persistent(false).fetch_all(transaction).await?;
        rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
    }
}
