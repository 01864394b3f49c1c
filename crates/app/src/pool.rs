//! Connections to the database of an application, which is the database of the engine.

use std::time::Duration;

use deadpool_postgres::{Hook, HookError, Manager, ManagerConfig, Pool, RecyclingMethod, Runtime};
use pitwheel::Error;
use tokio_postgres::config::SslMode;
use tokio_postgres::{Config, NoTls};

use crate::tls::client_config;

const SESSION_SETTINGS: &str = include_str!("../sql/session_settings.sql");

/// A connection attempt, or the wait for a free connection, that takes longer fails.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// At most this many connections. None is opened yet.
///
/// # Errors
/// If the URL cannot be used.
pub fn connect(url: &str, application: &str, connections: usize) -> Result<Pool, Error> {
    let mut config: Config =
        url.parse().map_err(|error: tokio_postgres::Error| Error::Url(error.to_string()))?;
    if config.get_application_name().is_none() {
        config.application_name(application);
    }
    let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let manager = match config.get_ssl_mode() {
        SslMode::Require => {
            let tls = client_config().map_err(|error| Error::Url(error.to_string()))?;
            Manager::from_config(
                config,
                tokio_postgres_rustls::MakeRustlsConnect::new((*tls).clone()),
                recycling,
            )
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
        .map_err(|error| Error::Url(error.to_string()))
}
