//! A bounded pool of connections to one database.

use std::future::Future;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use deadpool_postgres::{Hook, HookError, Manager, ManagerConfig, QueueMode, RecyclingMethod, Runtime};
use tokio::sync::OnceCell;
use tokio::time::{sleep, timeout};
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::{Client, Config, NoTls};

use super::session::{Session, no_answer};
use super::settings::Settings;
use super::tls::tls;
use crate::error::Error;

const SERVER_ADDRESS: &str = include_str!("../../sql/postgres/server_address.sql");

/// A connection attempt that takes longer fails.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// A statement that takes longer fails, and its connection is closed. The engine's statements take milliseconds; this limit
/// is for a server that hangs or a row that stays locked.
const STATEMENT_MAX: Duration = Duration::from_secs(30);
/// How long a statement of a loop waits for a locked row. Long enough for the short transactions of the engine itself.
const LOCK_WAIT: Duration = Duration::from_millis(200);
/// How soon a connection that is in use may be free, if the server has none left. Each time it is not, twice as long: another connection
/// may be tried, and the server starts a process to refuse it.
const IN_USE: Duration = Duration::from_millis(20);
const IN_USE_MAX: Duration = Duration::from_millis(500);
/// The SQLSTATE of a server that has no connection left.
const TOO_MANY_CONNECTIONS: &str = "53300";
/// TCP keepalives on an idle connection: the first after this long, then a few at an interval. A server that vanished is noticed after
/// about 20 seconds, also by the listener, which only reads.
const KEEPALIVE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(3);
const KEEPALIVE_RETRIES: u32 = 3;
/// A connection breaks when what was sent on it is not acknowledged for this long: while data is in flight, Linux sends no keepalive,
/// and would give up after about 15 minutes. The machine of the server acknowledges, so a statement that takes long breaks nothing.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(20);

/// Connections to one database, at most a given number of them.
#[derive(Clone)]
pub struct Pool {
    pool: deadpool_postgres::Pool,
    config: Arc<Config>,
    direct: Arc<OnceCell<bool>>,
    settings: Settings,
    on_error: fn(&Error),
    /// Close their idle connections when this pool has none and the server has none left.
    spare: Vec<deadpool_postgres::Pool>,
}

impl Pool {
    /// Opens no connection yet: a database that is not reachable shows at the first statement.
    pub fn new(url: &str, application: &str, size: usize) -> Result<Pool, Error> {
        let settings = Settings { limit: STATEMENT_MAX, lock_wait: None };
        Pool::with_config(config(url, application)?, size, settings, |_| {})
    }

    /// Calls `on_error` with every error of [`Pool::run`], to count it.
    pub(crate) fn on_error(self, on_error: fn(&Error)) -> Pool {
        Pool { on_error, ..self }
    }

    /// A pool of its own for the same database, for the loops of a node. A statement on it does not wait long for a locked
    /// row: it fails, and the loop comes back to it. It is given up after `limit`.
    pub fn for_loops(&self, size: usize, limit: Duration) -> Result<Pool, Error> {
        let settings = Settings { limit: limit.min(STATEMENT_MAX), lock_wait: Some(LOCK_WAIT) };
        Pool::with_config((*self.config).clone(), size, settings, self.on_error)
    }

    /// Takes the idle connections of `other` when the server has none left and this pool has none itself, so that a node with one
    /// connection still works.
    pub fn sharing_with(self, other: &Pool) -> Pool {
        let mut spare = self.spare;
        spare.push(other.pool.clone());
        Pool { spare, ..self }
    }

    fn with_config(
        config: Config,
        size: usize,
        settings: Settings,
        on_error: fn(&Error),
    ) -> Result<Pool, Error> {
        let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = match config.get_ssl_mode() {
            SslMode::Require => Manager::from_config(config.clone(), tls()?, recycling),
            _ => Manager::from_config(config.clone(), NoTls, recycling),
        };
        let config = Arc::new(config);
        let direct = Arc::new(OnceCell::new());
        let pool = deadpool_postgres::Pool::builder(manager)
            .max_size(size)
            // The most recently used connection has warm caches.
            .queue_mode(QueueMode::Lifo)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(settings.limit))
            .create_timeout(Some(CONNECT_MAX.min(settings.limit)))
            .post_create(set_up(config.clone(), direct.clone(), settings))
            .build()
            .map_err(|error| Error::Url(error.to_string()))?;
        Ok(Pool { pool, config, direct, settings, on_error, spare: Vec::new() })
    }

    /// A connection, returned to the pool when it is dropped and its statements were answered.
    pub async fn get(&self) -> Result<Session, Error> {
        // The limits of the pool are for a free place and for the handshake; the settings are sent after these.
        let connection = timeout(self.settings.limit, self.pool.get()).await;
        let connection = connection.map_err(|_| no_answer(self.settings.limit))??;
        let direct = self.direct.get().copied().unwrap_or(false);
        Ok(Session::new(connection, direct, self.settings))
    }

    /// Runs one engine step on a connection of its own. The connection of a step that takes too long is closed, so that
    /// its late answer cannot reach the next step.
    pub async fn run<T, F>(&self, step: impl FnOnce(Arc<Session>) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let session = self.get().await;
        self.run_on(session, after(self.settings.limit), step).await
    }

    /// Like [`Pool::run`], for a step that is not worth a longer wait than this, for a connection and for the step.
    pub async fn run_within<T, F>(
        &self,
        limit: Duration,
        step: impl FnOnce(Arc<Session>) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        self.run_until(after(limit), step).await
    }

    /// Like [`Pool::run`], for a step whose connection is closed when `given_up` says why.
    pub async fn run_until<T, F>(
        &self,
        given_up: impl Future<Output = Error>,
        step: impl FnOnce(Arc<Session>) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let mut given_up = pin!(given_up);
        let session = tokio::select! {
            biased;
            session = self.get() => session,
            error = &mut given_up => Err(error),
        };
        self.run_on(session, given_up, step).await
    }

    /// Like [`Pool::run`], on a connection of `other` if the server has none left for this pool. One that is in use is waited for.
    pub async fn run_or_borrow<T, F>(
        &self,
        other: &Pool,
        step: impl Fn(Arc<Session>) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        match self.run(&step).await {
            Err(Error::Database(error)) if error.refused_with(TOO_MANY_CONNECTIONS) => {
                self.borrow(other, step).await
            }
            done => done,
        }
    }

    /// A pool whose connections are all in use tries to open another one, instead of waiting.
    async fn borrow<T, F>(&self, other: &Pool, step: impl Fn(Arc<Session>) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let until = Instant::now() + self.settings.limit;
        let mut pause = IN_USE;
        loop {
            match other.run_within(until.saturating_duration_since(Instant::now()), &step).await {
                Err(Error::Database(error))
                    if error.refused_with(TOO_MANY_CONNECTIONS) && Instant::now() < until =>
                {
                    sleep(pause).await;
                    pause = (2 * pause).min(IN_USE_MAX);
                }
                done => return done,
            }
        }
    }

    async fn run_on<T, F>(
        &self,
        session: Result<Session, Error>,
        given_up: impl Future<Output = Error>,
        step: impl FnOnce(Arc<Session>) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let session = Arc::new(session.inspect_err(|error| self.failed(error))?);
        let begun = tokio::time::Instant::now();
        // A statement of its own: the step's future, and its reference to the session, are dropped here.
        let done = tokio::select! {
            biased;
            done = step(session.clone()) => Ok(done),
            error = given_up => Err(error),
        };
        let done = done.unwrap_or_else(|error| {
            session.close_others(begun);
            if let Ok(session) = Arc::try_unwrap(session) {
                session.close();
            }
            Err(error)
        });
        done.inspect_err(|error| self.failed(error))
    }

    fn failed(&self, error: &Error) {
        (self.on_error)(error);
        if let Error::Database(error) = error
            && error.refused_with(TOO_MANY_CONNECTIONS)
            && self.pool.status().size == 0
        {
            for spare in &self.spare {
                spare.retain(|_, _| false);
            }
        }
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

async fn after(limit: Duration) -> Error {
    sleep(limit).await;
    no_answer(limit)
}

/// Runs once per connection: finds out, with the first one, whether connections are direct, and sends direct ones their
/// session settings.
fn set_up(config: Arc<Config>, direct: Arc<OnceCell<bool>>, settings: Settings) -> Hook {
    Hook::async_fn(move |client, _| {
        let (config, direct) = (config.clone(), direct.clone());
        Box::pin(async move {
            let direct =
                direct.get_or_try_init(|| is_direct(&config, client)).await.map_err(HookError::Backend)?;
            if *direct {
                settings.pin(client, false).await.map_err(HookError::Backend)?;
            }
            Ok(())
        })
    })
}

/// Whether the server accepted the connection at the address that was dialled. Behind a pooler it did not, and a statement
/// prepared now may meet another session, or another client's statement of the same name, the next time.
async fn is_direct(config: &Config, client: &Client) -> Result<bool, tokio_postgres::Error> {
    let [Host::Tcp(host)] = config.get_hosts() else { return Ok(false) };
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let row = client.query_typed_one(SERVER_ADDRESS, &[]).await?;
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

    #[test]
    fn a_server_that_vanished_is_noticed_in_20_seconds_whether_data_is_in_flight_or_not() {
        let limit = Duration::from_secs(20);
        let config = config("postgres://ada@localhost/app", "test").expect("a URL");
        let retries = config.get_keepalives_retries().expect("a number");
        let between = config.get_keepalives_interval().expect("an interval");
        let idle = config.get_keepalives_idle() + between * retries;
        assert!(config.get_keepalives() && idle <= limit, "{idle:?}");
        assert!(config.get_tcp_user_timeout().is_some_and(|in_flight| *in_flight <= limit));
    }
}
