//! Connections: how they are made, kept few, and given back.

use std::future::Future;
use std::net::IpAddr;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Object, QueueMode, RecyclingMethod, Runtime};
use tokio::sync::OnceCell;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Config, NoTls, Row, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::client::Pitwheel;
use crate::error::{DatabaseError, Error};
use crate::metrics;

/// A connection attempt that takes longer is given up.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// A statement that takes longer is given up, and its connection with it. The engine's own take milliseconds; this is for
/// a server that hangs, or a row that somebody keeps locked.
const STATEMENT_MAX: Duration = Duration::from_secs(30);
/// A peer that vanished without a word is noticed after about this long.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// Plans are made once: one for the parameters at hand is never better here, and Postgres would make it at every batch. So
/// they must not read the whole table because it happened to be small when they were made. Where there is no other way (a
/// table of one row) that looks dear enough to be compiled, which would take longer than all the rest.
const PLANS: &str = "set plan_cache_mode = force_generic_plan; set enable_seqscan = off; set jit = off";

/// A statement's parameters, each with its type.
pub(crate) type Params<'a> = &'a [(&'a (dyn ToSql + Sync), Type)];

/// What statements of the hot path are sent through.
pub trait Sql: Sync {
    /// The rows of one statement.
    fn rows(&self, sql: &str, params: Params<'_>) -> impl Future<Output = Result<Vec<Row>, Error>> + Send;

    /// Makes sure that the statement goes out the moment its rows are asked for.
    fn ready(&self, sql: &str, types: &[Type]) -> impl Future<Output = Result<(), Error>> + Send;
}

/// Unnamed, in one round trip: it needs nothing of the session, so it passes through PgBouncer in transaction mode.
impl Sql for Client {
    async fn rows(&self, sql: &str, params: Params<'_>) -> Result<Vec<Row>, Error> {
        Ok(self.query_typed(sql, params).await?)
    }

    async fn ready(&self, _: &str, _: &[Type]) -> Result<(), Error> {
        Ok(())
    }
}

/// A connection out of a pool.
pub struct Session {
    connection: Object,
    /// Nobody stands between us and the server, so statements may be prepared: that saves their planning, a tenth of
    /// what a batch costs.
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

/// Connections to one database, at most a given number of them.
#[derive(Clone)]
pub struct Pool {
    pool: deadpool_postgres::Pool,
    config: Arc<Config>,
    direct: Arc<OnceCell<bool>>,
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
            // The connection used last is the one whose caches are warm.
            .queue_mode(QueueMode::Lifo)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(STATEMENT_MAX))
            .create_timeout(Some(CONNECT_MAX))
            .build()
            .map_err(|error| Error::Url(error.to_string()))?;
        Ok(Pool { pool, config: Arc::new(config), direct: Arc::default() })
    }

    /// A connection, for as long as the guard lives.
    pub async fn get(&self) -> Result<Session, Error> {
        let connection = self.pool.get().await?;
        let direct = *self.direct.get_or_try_init(|| is_direct(&self.config, &connection)).await?;
        if direct && connection.statement_cache.size() == 0 {
            connection.batch_execute(PLANS).await?;
            // So that this is done once.
            connection.prepare_cached("select").await?;
        }
        Ok(Session { connection, direct })
    }

    /// Runs one engine step on a connection of its own. A step that does not answer in time loses its connection, so that
    /// a late answer cannot reach the next one.
    pub async fn run<T, F>(&self, step: impl FnOnce(Arc<Session>) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let session = Arc::new(self.get().await.inspect_err(metrics::failed)?);
        // A statement of its own, so that a step that took too long, and its share of the session, is gone behind it.
        let done = tokio::time::timeout(STATEMENT_MAX, step(session.clone())).await;
        let done = done.unwrap_or_else(|_| {
            if let Ok(session) = Arc::try_unwrap(session) {
                drop(Object::take(session.connection));
            }
            Err(no_answer())
        });
        done.inspect_err(metrics::failed)
    }

    /// How many connections are in use, how many are idle, and how many callers wait for one.
    pub fn usage(&self) -> (usize, usize, usize) {
        let status = self.pool.status();
        (status.size - status.available.min(status.size), status.available, status.waiting)
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }
}

/// Connections of their own to the database of a handle.
pub fn pool_of(pitwheel: &Pitwheel, size: usize) -> Result<Pool, Error> {
    pitwheel.pool.sibling(size)
}

fn no_answer() -> Error {
    let seconds = STATEMENT_MAX.as_secs();
    Error::Database(DatabaseError::Unreachable(format!("no answer for {seconds} s")))
}

/// The rows of one statement.
pub(crate) async fn query(client: &Client, sql: &str, params: Params<'_>) -> Result<Vec<Row>, Error> {
    Ok(client.query_typed(sql, params).await?)
}

/// Whether the server's own address is the one we dialled. Behind a pooler it is not, and then a statement prepared now may
/// meet another session, or another client's statement of the same name, the next time.
async fn is_direct(config: &Config, client: &Client) -> Result<bool, Error> {
    let [Host::Tcp(host)] = config.get_hosts() else { return Ok(false) };
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let sql = "select host(inet_server_addr()), inet_server_port()";
    let row = client.query_typed_one(sql, &[]).await?;
    let (address, server_port): (Option<String>, Option<i32>) = (row.get(0), row.get(1));
    let Some(address) = address.and_then(|address| address.parse::<IpAddr>().ok()) else { return Ok(false) };
    let dialled = tokio::net::lookup_host((host.as_str(), port)).await;
    let dialled: Vec<IpAddr> =
        dialled.map(|found| found.map(|socket| socket.ip()).collect()).unwrap_or_default();
    Ok(server_port == Some(i32::from(port)) && dialled.contains(&address))
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
