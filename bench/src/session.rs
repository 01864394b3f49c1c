//! A connection and the task that drives it.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::task::JoinHandle;
use tokio_postgres::{Client, NoTls};

/// How long a case waits for a condition before it fails.
const WAIT_MAX: Duration = Duration::from_secs(120);

/// One connection to the server under test. [`Session::close`] waits for its task and returns its error.
pub(crate) struct Session {
    pub(crate) client: Client,
    connection: JoinHandle<Result<(), tokio_postgres::Error>>,
}

impl Session {
    pub(crate) async fn open(url: &str) -> Result<Self> {
        let (client, connection) = tokio_postgres::connect(url, NoTls)
            .await
            .context("cannot connect to the server: check `DATABASE_URL`")?;
        Ok(Self { client, connection: tokio::spawn(connection) })
    }

    /// Repeats a query until it returns true.
    pub(crate) async fn until(&self, condition: &str) -> Result<()> {
        let query = self.client.prepare(condition).await?;
        let holds = async {
            while !self.client.query_one(&query, &[]).await?.get::<_, bool>(0) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            anyhow::Ok(())
        };
        let waited = tokio::time::timeout(WAIT_MAX, holds).await;
        waited.with_context(|| format!("timed out waiting for `{condition}`"))?
    }

    pub(crate) async fn close(self) -> Result<()> {
        drop(self.client);
        Ok(self.connection.await??)
    }
}
