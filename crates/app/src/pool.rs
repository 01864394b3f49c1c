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
/// TCP keepalives on an idle connection, as the engine has them.
const KEEPALIVE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(3);
const KEEPALIVE_RETRIES: u32 = 3;
/// A connection breaks when the server has acknowledged nothing for this long, no keepalive either. Statements have no limit of their
/// own here, because a load may take long. Not shorter: it also counts while a busy server takes no more rows of a `COPY`.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(60);

/// At most this many connections. None is opened yet.
///
/// # Errors
/// If the URL cannot be used.
pub fn connect(url: &str, application: &str, connections: usize) -> Result<Pool, Error> {
    let config = config(url, application)?;
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

fn config(url: &str, application: &str) -> Result<Config, Error> {
    let mut config: Config =
        url.parse().map_err(|error: tokio_postgres::Error| Error::Url(error.to_string()))?;
    config.connect_timeout(WAIT_MAX).keepalives(true).keepalives_idle(KEEPALIVE);
    config.keepalives_interval(KEEPALIVE_INTERVAL).keepalives_retries(KEEPALIVE_RETRIES);
    config.tcp_user_timeout(UNACKNOWLEDGED_MAX);
    if config.get_application_name().is_none() {
        config.application_name(application);
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn a_database_that_vanished_is_noticed_within_a_minute() {
        let config = config("postgres://ada@localhost/app", "test").expect("a URL");
        let retries = config.get_keepalives_retries().expect("a number");
        let between = config.get_keepalives_interval().expect("an interval");
        let idle = config.get_keepalives_idle() + between * retries;
        assert!(config.get_keepalives() && idle < MINUTE, "{idle:?}");
        assert!(config.get_tcp_user_timeout().is_some_and(|limit| *limit <= MINUTE));
        assert_eq!(config.get_application_name(), Some("test"));
    }
}
