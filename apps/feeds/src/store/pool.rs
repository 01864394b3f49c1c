//! Connections to the database of the feeds, which is the database of the engine.

use std::time::Duration;

use deadpool_postgres::{Hook, HookError, Manager, ManagerConfig, Object, Pool, RecyclingMethod, Runtime};
use tokio_postgres::config::SslMode;
use tokio_postgres::{Config, NoTls};

use crate::error::Error;
use crate::tls;

const SESSION_SETTINGS: &str = include_str!("../../sql/session_settings.sql");

/// A connection attempt, or the wait for a free connection, that takes longer fails.
const WAIT_MAX: Duration = Duration::from_secs(30);

pub(crate) fn connect(url: &str, connections: usize) -> Result<Pool, Error> {
    let invalid = |error: tokio_postgres::Error| Error::Invalid(format!("the database URL: {error}"));
    let mut config: Config = url.parse().map_err(invalid)?;
    if config.get_application_name().is_none() {
        config.application_name("pitwheel-feeds");
    }
    let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let manager = match config.get_ssl_mode() {
        SslMode::Require => {
            let tls = tokio_postgres_rustls::MakeRustlsConnect::new((*tls::client_config()?).clone());
            Manager::from_config(config, tls, recycling)
        }
        _ => Manager::from_config(config, NoTls, recycling),
    };
    Pool::builder(manager)
        .max_size(connections)
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(WAIT_MAX))
        .create_timeout(Some(WAIT_MAX))
        .post_create(Hook::async_fn(|client, _| {
            Box::pin(async move { client.batch_execute(SESSION_SETTINGS).await.map_err(HookError::Backend) })
        }))
        .build()
        .map_err(|error| Error::Invalid(error.to_string()))
}

/// A connection that prepares each statement once.
pub(crate) async fn get(pool: &Pool) -> Result<Object, Error> {
    Ok(pool.get().await?)
}
