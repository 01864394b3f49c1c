//! A connection and the task that drives it.

use anyhow::{Context, Result};
use tokio::task::JoinHandle;
use tokio_postgres::{Client, NoTls};

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

    pub(crate) async fn close(self) -> Result<()> {
        drop(self.client);
        Ok(self.connection.await??)
    }
}
