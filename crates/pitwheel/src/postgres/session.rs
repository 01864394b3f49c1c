//! One connection, and how statements are sent on it.

use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use deadpool_postgres::Object;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row, Statement};

use super::settings::Settings;
use crate::error::Error;

/// The transaction of a statement that is sent through a pooler.
const BEGIN: &str = include_str!("../../sql/postgres/begin.sql");
const COMMIT: &str = include_str!("../../sql/postgres/commit.sql");

/// The parameters of a statement, each with its type.
pub(crate) type Params<'a> = &'a [(&'a (dyn ToSql + Sync), Type)];

/// A connection that statements of the engine are sent on.
pub trait Sql: Sync {
    /// Runs one statement of the hot path and returns its rows.
    fn rows(&self, sql: &str, params: Params<'_>) -> impl Future<Output = Result<Vec<Row>, Error>> + Send;

    /// Runs one statement that is not worth preparing, and returns its rows.
    fn rows_once(
        &self,
        sql: &str,
        params: Params<'_>,
    ) -> impl Future<Output = Result<Vec<Row>, Error>> + Send;

    /// Prepares the statement if this connection prepares statements, so that [`Sql::rows`] sends it without a round trip
    /// before it.
    fn ready(&self, sql: &str, types: &[Type]) -> impl Future<Output = Result<(), Error>> + Send;
}

/// A connection of the caller's own, perhaps inside a transaction: statements are sent as they are.
impl Sql for Client {
    async fn rows(&self, sql: &str, params: Params<'_>) -> Result<Vec<Row>, Error> {
        Ok(self.query_typed(sql, params).await?)
    }

    async fn rows_once(&self, sql: &str, params: Params<'_>) -> Result<Vec<Row>, Error> {
        self.rows(sql, params).await
    }

    async fn ready(&self, _: &str, _: &[Type]) -> Result<(), Error> {
        Ok(())
    }
}

/// A connection out of a pool.
pub struct Session {
    connection: Object,
    /// There is no pooler in between, so the session keeps its settings, and statements may be prepared: that saves planning, a
    /// tenth of the cost of a batch.
    direct: bool,
    settings: Settings,
}

impl Sql for Session {
    async fn rows(&self, sql: &str, params: Params<'_>) -> Result<Vec<Row>, Error> {
        if !self.direct {
            return self.rows_pooled(sql, params).await;
        }
        let types: Vec<Type> = params.iter().map(|(_, kind)| kind.clone()).collect();
        let statement = self.prepared(sql, &types).await?;
        let values: Vec<&(dyn ToSql + Sync)> = params.iter().map(|(value, _)| *value).collect();
        Ok(self.connection.query(&statement, &values).await?)
    }

    async fn rows_once(&self, sql: &str, params: Params<'_>) -> Result<Vec<Row>, Error> {
        if self.direct { Client::rows(self, sql, params).await } else { self.rows_pooled(sql, params).await }
    }

    async fn ready(&self, sql: &str, types: &[Type]) -> Result<(), Error> {
        if self.direct {
            self.prepared(sql, types).await?;
        }
        Ok(())
    }
}

impl<T: Sql + Send> Sql for Arc<T> {
    async fn rows(&self, sql: &str, params: Params<'_>) -> Result<Vec<Row>, Error> {
        (**self).rows(sql, params).await
    }

    async fn rows_once(&self, sql: &str, params: Params<'_>) -> Result<Vec<Row>, Error> {
        (**self).rows_once(sql, params).await
    }

    async fn ready(&self, sql: &str, types: &[Type]) -> Result<(), Error> {
        (**self).ready(sql, types).await
    }
}

impl Session {
    pub(super) fn new(connection: Object, direct: bool, settings: Settings) -> Session {
        Session { connection, direct, settings }
    }

    /// Closes the connection instead of returning it to its pool.
    pub(super) fn close(self) {
        drop(Object::take(self.connection));
    }

    async fn prepared(&self, sql: &str, types: &[Type]) -> Result<Statement, Error> {
        Ok(self.connection.prepare_typed_cached(sql, types).await?)
    }

    /// In a transaction of its own that pins the settings, since the next statement may get another session. All four messages
    /// are sent at once, so it is still one round trip.
    async fn rows_pooled(&self, sql: &str, params: Params<'_>) -> Result<Vec<Row>, Error> {
        let client: &Client = self;
        let (begun, pinned, rows, committed) = tokio::join!(
            client.batch_execute(BEGIN),
            self.settings.pin(client, true),
            client.query_typed(sql, params),
            client.batch_execute(COMMIT),
        );
        begun?;
        pinned?;
        let rows = rows?;
        committed?;
        Ok(rows)
    }
}

impl Deref for Session {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.connection
    }
}

impl DerefMut for Session {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.connection
    }
}

/// Runs one statement that is not worth preparing, and returns its rows.
pub(crate) async fn query(client: &impl Sql, sql: &str, params: Params<'_>) -> Result<Vec<Row>, Error> {
    client.rows_once(sql, params).await
}
