//! The session settings that the engine pins.

use std::time::Duration;

use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error};

const SESSION_SETTINGS: &str = include_str!("../../sql/postgres/session_settings.sql");

/// The limits of a statement.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settings {
    /// The client gives a statement up after this long, and closes its connection.
    pub(super) limit: Duration,
    /// How long a statement waits for a locked row; `None`: up to the limit.
    pub(super) lock_wait: Option<Duration>,
}

impl Settings {
    /// Sends the settings: for the session, or for its current transaction (`local`).
    pub(super) async fn pin(self, client: &Client, local: bool) -> Result<(), Error> {
        // The server ends a statement before the client gives it up, so that it cannot commit unseen.
        let statement_ms = (self.limit.as_millis() * 5 / 6).max(1).to_string();
        let lock_ms = self.lock_wait.unwrap_or_default().as_millis().to_string();
        let params =
            [(&statement_ms as _, Type::TEXT), (&lock_ms as _, Type::TEXT), (&local as _, Type::BOOL)];
        client.query_typed(SESSION_SETTINGS, &params).await.map(drop)
    }
}
