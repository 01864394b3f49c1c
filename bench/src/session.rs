//! A connection and the task that drives it.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::task::JoinHandle;
use tokio_postgres::{Client, NoTls};

/// Whatever a case waits for is there by then, or never.
const PATIENCE: Duration = Duration::from_secs(120);

/// One connection to the server under test. Close it: its task is then waited for, and its error is not lost.
pub(crate) struct Session {
    pub(crate) client: Client,
    connection: JoinHandle<Result<(), tokio_postgres::Error>>,
}

impl Session {
    pub(crate) async fn open(url: &str) -> Result<Self> {
        let (client, connection) = tokio_postgres::connect(url, NoTls)
            .await
            .context("cannot reach the server: is `DATABASE_URL` right?")?;
        Ok(Self { client, connection: tokio::spawn(connection) })
    }

    /// Asks until the answer is yes.
    pub(crate) async fn until(&self, question: &str) -> Result<()> {
        let asked = self.client.prepare(question).await?;
        let answer = async {
            while !self.client.query_one(&asked, &[]).await?.get::<_, bool>(0) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            anyhow::Ok(())
        };
        let waited = tokio::time::timeout(PATIENCE, answer).await;
        waited.with_context(|| format!("waited in vain for `{question}`"))?
    }

    pub(crate) async fn close(self) -> Result<()> {
        drop(self.client);
        Ok(self.connection.await??)
    }
}
