//! One connection, and how statements are sent on it.

use std::future::Future;
use std::ops::{Deref, DerefMut};

use deadpool_postgres::Object;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row, Statement};

use crate::error::Error;

/// The parameters of a statement, each with its type.
pub(crate) type Params<'a> = &'a [(&'a (dyn ToSql + Sync), Type)];

/// A connection that statements of the hot path are sent on.
pub trait Sql: Sync {
    /// Runs one statement and returns its rows.
    fn rows(&self, sql: &str, params: Params<'_>) -> impl Future<Output = Result<Vec<Row>, Error>> + Send;

    /// Prepares the statement if this connection prepares statements, so that [`Sql::rows`] sends it without a round trip
    /// before it.
    fn ready(&self, sql: &str, types: &[Type]) -> impl Future<Output = Result<(), Error>> + Send;
}

/// Unnamed, in one round trip: it uses no session state, so it works through PgBouncer in transaction mode.
impl Sql for Client {
    async fn rows(&self, sql: &str, params: Params<'_>) -> Result<Vec<Row>, Error> {
        query(self, sql, params).await
    }

    async fn ready(&self, _: &str, _: &[Type]) -> Result<(), Error> {
        Ok(())
    }
}

/// A connection out of a pool.
pub struct Session {
    connection: Object,
    /// There is no pooler in between, so statements may be prepared: that saves planning, a tenth of the cost of a batch.
    direct: bool,
}

impl Sql for Session {
    async fn rows(&self, sql: &str, params: Params<'_>) -> Result<Vec<Row>, Error> {
        if !self.direct {
            return Client::rows(self, sql, params).await;
        }
        let types: Vec<Type> = params.iter().map(|(_, kind)| kind.clone()).collect();
        let statement = self.prepared(sql, &types).await?;
        let values: Vec<&(dyn ToSql + Sync)> = params.iter().map(|(value, _)| *value).collect();
        Ok(self.connection.query(&statement, &values).await?)
    }

    async fn ready(&self, sql: &str, types: &[Type]) -> Result<(), Error> {
        if self.direct {
            self.prepared(sql, types).await?;
        }
        Ok(())
    }
}

impl Session {
    pub(super) fn new(connection: Object, direct: bool) -> Session {
        Session { connection, direct }
    }

    /// Closes the connection instead of returning it to its pool.
    pub(super) fn close(self) {
        drop(Object::take(self.connection));
    }

    async fn prepared(&self, sql: &str, types: &[Type]) -> Result<Statement, Error> {
        Ok(self.connection.prepare_typed_cached(sql, types).await?)
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

/// Runs one unnamed statement and returns its rows.
pub(crate) async fn query(client: &Client, sql: &str, params: Params<'_>) -> Result<Vec<Row>, Error> {
    Ok(client.query_typed(sql, params).await?)
}
