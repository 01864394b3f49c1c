//! Connections: how they are made, kept few, and given back.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Object, RecyclingMethod, Runtime};
use tokio_postgres::config::SslMode;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Config, NoTls, Row};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::error::{DatabaseError, Error};

/// A connection attempt that takes longer is given up.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// A statement that takes longer is given up, and its connection with it. The engine's own take milliseconds; this is for
/// a server that hangs, or a row that somebody keeps locked.
const STATEMENT_MAX: Duration = Duration::from_secs(30);
/// A peer that vanished without a word is noticed after about this long.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// A statement's parameters, each with its type: sent unnamed in one round trip, so that they pass through PgBouncer in
/// transaction mode, and planned for the values at hand, so that no generic plan can go stale.
pub(crate) type Params<'a> = &'a [(&'a (dyn ToSql + Sync), Type)];

/// Connections to one database, at most a given number of them.
#[derive(Clone)]
pub struct Pool {
    pool: deadpool_postgres::Pool,
    config: Arc<Config>,
}

impl Pool {
    /// Nothing is connected yet: a database that is away shows at the first statement.
    pub fn new(url: &str, application: &str, size: usize) -> Result<Pool, Error> {
        Pool::with_config(config(url, application)?, size)
    }

    /// The same database, with connections of its own.
    pub(crate) fn sibling(&self, size: usize) -> Result<Pool, Error> {
        Pool::with_config((*self.config).clone(), size)
    }

    fn with_config(config: Config, size: usize) -> Result<Pool, Error> {
        let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = match config.get_ssl_mode() {
            SslMode::Require => Manager::from_config(config.clone(), tls()?, recycling),
            _ => Manager::from_config(config.clone(), NoTls, recycling),
        };
        let pool = deadpool_postgres::Pool::builder(manager)
            .max_size(size)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(STATEMENT_MAX))
            .create_timeout(Some(CONNECT_MAX))
            .build()
            .map_err(|error| Error::Url(error.to_string()))?;
        Ok(Pool { pool, config: Arc::new(config) })
    }

    /// A connection, for as long as the guard lives.
    pub async fn get(&self) -> Result<Object, Error> {
        Ok(self.pool.get().await?)
    }

    /// Runs one engine step on a connection of its own. A step that does not answer in time loses its connection, so that
    /// a late answer cannot reach the next one.
    pub(crate) async fn run<T, F>(&self, step: impl FnOnce(Arc<Object>) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let connection = Arc::new(self.get().await?);
        match tokio::time::timeout(STATEMENT_MAX, step(connection.clone())).await {
            Ok(done) => done,
            Err(_) => {
                if let Ok(object) = Arc::try_unwrap(connection) {
                    drop(Object::take(object));
                }
                Err(no_answer())
            }
        }
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }
}

fn no_answer() -> Error {
    let seconds = STATEMENT_MAX.as_secs();
    Error::Database(DatabaseError::Unreachable(format!("no answer for {seconds} s")))
}

/// The rows of one statement.
pub(crate) async fn query(client: &Client, sql: &str, params: Params<'_>) -> Result<Vec<Row>, Error> {
    Ok(client.query_typed(sql, params).await?)
}

fn config(url: &str, application: &str) -> Result<Config, Error> {
    let mut config: Config = url.parse().map_err(|error: tokio_postgres::Error| {
        use std::error::Error as _;
        let reason = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        Error::Url(format!("{reason} (expected postgres://user@host:5432/database)"))
    })?;
    config.connect_timeout(CONNECT_MAX).keepalives(true).keepalives_idle(KEEPALIVE);
    if config.get_application_name().is_none() {
        config.application_name(application);
    }
    Ok(config)
}

/// TLS as `sslmode=require` asks for it: verified against the system's roots, or those that `SSL_CERT_FILE` names.
pub(crate) fn tls() -> Result<MakeRustlsConnect, Error> {
    let mut roots = rustls::RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if added == 0 {
        return Err(Error::Url(
            "sslmode=require, but no root certificates were found: set SSL_CERT_FILE to your authority's certificate".into(),
        ));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::Url(format!("TLS cannot be set up: {error}")))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}
