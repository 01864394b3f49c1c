//! One connection, and how statements are sent on it.

use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use deadpool_postgres::Object;
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, IsolationLevel, Row, Statement};

use super::settings::Settings;
use crate::error::{DatabaseError, Error};

/// The transaction of a statement that is sent through a pooler.
const BEGIN: &str = include_str!("../../sql/postgres/begin.sql");
const COMMIT: &str = include_str!("../../sql/postgres/commit.sql");

/// Why a session has a connection: it is given up when the session is dropped.
const IN_USE: &str = "a session in use has a connection";

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

/// A connection out of a pool. When it is dropped, it goes back to its pool, or waits for the answer that its caller did not wait for.
pub struct Session {
    /// `None` while it is dropped.
    connection: Option<Object>,
    /// There is no pooler in between, so the session keeps its settings, and statements may be prepared: that saves planning, a
    /// tenth of the cost of a batch.
    direct: bool,
    settings: Settings,
    /// A caller gave up before its statement was answered: until when the answer may come.
    unanswered: OnceLock<Instant>,
}

impl Sql for Session {
    async fn rows(&self, sql: &str, params: Params<'_>) -> Result<Vec<Row>, Error> {
        self.answer(async {
            if !self.direct {
                return self.rows_pooled(sql, params).await;
            }
            let types: Vec<Type> = params.iter().map(|(_, kind)| kind.clone()).collect();
            let statement = self.prepared(sql, &types).await?;
            let values: Vec<&(dyn ToSql + Sync)> = params.iter().map(|(value, _)| *value).collect();
            Ok(self.query(&statement, &values).await?)
        })
        .await
    }

    async fn rows_once(&self, sql: &str, params: Params<'_>) -> Result<Vec<Row>, Error> {
        self.answer(async {
            if self.direct {
                Client::rows(self, sql, params).await
            } else {
                self.rows_pooled(sql, params).await
            }
        })
        .await
    }

    async fn ready(&self, sql: &str, types: &[Type]) -> Result<(), Error> {
        if self.direct {
            self.answer(self.prepared(sql, types)).await?;
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
        Session { connection: Some(connection), direct, settings, unanswered: OnceLock::new() }
    }

    /// Closes the connection instead of returning it to its pool.
    pub(super) fn close(mut self) {
        drop(self.connection.take().map(Object::take));
    }

    /// Closes the idle connections of its pool that were not used since. This one was not answered, so they may be broken too, and each
    /// would be waited for.
    pub(super) fn close_others(&self, since: Instant) {
        if let Some(pool) = Object::pool(self.connection()) {
            pool.retain(|_, metrics| metrics.last_used() < since.elapsed());
        }
    }

    /// Begins a transaction in which each statement sees what was committed before it.
    pub(crate) async fn begin(&mut self) -> Result<Transaction<'_>, Error> {
        let sent = Sent::new(&self.unanswered, self.settings.limit);
        let client = self.connection.as_mut().expect(IN_USE);
        let begin = client.build_transaction().isolation_level(IsolationLevel::ReadCommitted);
        Ok(Transaction { begun: begin.start().await?, sent })
    }

    fn connection(&self) -> &Object {
        self.connection.as_ref().expect(IN_USE)
    }

    /// Waits for the answer to a statement, within the limit of the session. If the caller gives up before, the session is not used again
    /// until the statement was answered.
    async fn answer<T>(&self, statement: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let sent = Sent::new(&self.unanswered, self.settings.limit);
        let begun = Instant::now();
        let answer = timeout_at(sent.until, statement).await.map_err(|_| {
            self.close_others(begun);
            no_answer(self.settings.limit)
        })?;
        sent.was_answered();
        answer
    }

    async fn prepared(&self, sql: &str, types: &[Type]) -> Result<Statement, Error> {
        Ok(self.connection().prepare_typed_cached(sql, types).await?)
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
        self.connection()
    }
}

impl DerefMut for Session {
    fn deref_mut(&mut self) -> &mut Client {
        self.connection.as_mut().expect(IN_USE)
    }
}

/// The next caller would wait behind a statement that was given up, for as long as it waits for a lock. So the connection keeps its place in
/// the pool until it has answered, and is closed if it does not.
impl Drop for Session {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        match (self.unanswered.get(), Handle::try_current()) {
            (None, _) => {}
            (Some(until), Ok(runtime)) if Instant::now() < *until => {
                drop(runtime.spawn(return_when_answered(connection, *until)));
            }
            (Some(_), _) => drop(Object::take(connection)),
        }
    }
}

async fn return_when_answered(connection: Object, until: Instant) {
    let answered = timeout_at(until, connection.check_connection()).await;
    if !matches!(answered, Ok(Ok(()))) {
        drop(Object::take(connection));
    }
}

/// Says that the session has unanswered statements if it is dropped before they were answered.
struct Sent<'a> {
    unanswered: &'a OnceLock<Instant>,
    until: Instant,
    is_answered: bool,
}

impl Sent<'_> {
    fn new(unanswered: &OnceLock<Instant>, limit: Duration) -> Sent<'_> {
        Sent { unanswered, until: Instant::now() + limit, is_answered: false }
    }

    fn was_answered(mut self) {
        self.is_answered = true;
    }
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            let _ = self.unanswered.set(self.until);
        }
    }
}

/// A transaction of a session. Rolled back when it is dropped.
pub(crate) struct Transaction<'a> {
    begun: deadpool_postgres::Transaction<'a>,
    sent: Sent<'a>,
}

impl Transaction<'_> {
    pub(crate) async fn commit(self) -> Result<(), Error> {
        self.begun.commit().await?;
        self.sent.was_answered();
        Ok(())
    }
}

impl Deref for Transaction<'_> {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.begun.client()
    }
}

pub(crate) fn no_answer(limit: Duration) -> Error {
    Error::Database(DatabaseError::Unreachable(format!("no answer for {limit:?}")))
}

/// Runs one statement that is not worth preparing, and returns its rows.
pub(crate) async fn query(client: &impl Sql, sql: &str, params: Params<'_>) -> Result<Vec<Row>, Error> {
    client.rows_once(sql, params).await
}
