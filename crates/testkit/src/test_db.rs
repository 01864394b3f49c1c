//! A database for one test, and the engine's steps on it with defaults that suit tests.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use pitwheel::engine::{
    self, Claimed, Cursor, Ending, QueueSlots, Registration, SettleResult, Settlement, Swept,
};
use pitwheel::{Error, History, Pitwheel, Settled, State};
use tokio_postgres::Client;

use crate::database::Database;
use crate::job_factory::JobFactory;
use crate::postgres::connect;

/// Far longer than a test takes: a lease expires only if a test expires it.
const LEASE: Duration = Duration::from_secs(3600);

/// A database for one test, dropped with it, and the engine's steps on it.
pub struct TestDb {
    client: Client,
    pitwheel: Pitwheel,
    database: Database,
}

impl TestDb {
    /// A migrated database without rows, on a private server of this process or on that of `DATABASE_URL`.
    pub async fn new() -> Result<TestDb> {
        TestDb::on(Database::migrated().await?).await
    }

    /// A database without the schema.
    pub async fn unmigrated() -> Result<TestDb> {
        TestDb::on(Database::empty().await?).await
    }

    async fn on(database: Database) -> Result<TestDb> {
        let url = database.url();
        Ok(TestDb { client: connect(url).await?, pitwheel: Pitwheel::connect(url).await?, database })
    }

    /// The database's URL.
    pub fn url(&self) -> &str {
        self.database.url()
    }

    /// A connected handle.
    pub fn pitwheel(&self) -> &Pitwheel {
        &self.pitwheel
    }

    /// A new connection for the caller.
    pub async fn client(&self) -> Result<Client> {
        connect(self.url()).await
    }

    /// A job to insert.
    pub fn job(&self) -> JobFactory<'_> {
        JobFactory::new(&self.client)
    }

    /// Registers a worker with a long lease; returns its id.
    pub async fn register(&self) -> Result<i64> {
        let worker = Registration {
            name: "test".to_owned(),
            lease: LEASE,
            transport: "direct",
            queues: vec!["default".to_owned()],
            kinds: vec!["test".to_owned()],
            slots: 1,
            token: None,
        };
        Ok(engine::register(&self.client, &worker).await?)
    }

    /// Claims one job for a new worker.
    pub async fn claim_one(&self) -> Result<Claimed> {
        let claimed = self.claim(1).await?;
        claimed.into_iter().next().context("nothing was due")
    }

    /// Claims up to `slots` jobs of the queue `default` and the kind `test` for a new worker.
    pub async fn claim(&self, slots: usize) -> Result<Vec<Claimed>> {
        let worker = self.register().await?;
        self.claim_as(worker, slots).await
    }

    /// Claims for a worker that is already registered.
    pub async fn claim_as(&self, worker: i64, slots: usize) -> Result<Vec<Claimed>> {
        claim_on(&self.client, worker, slots).await
    }

    /// Claims as a node does for its streams: the n-th due job goes to the n-th of these workers.
    pub async fn claim_for_workers(&self, slots_by_worker: &[i64]) -> Result<Vec<Claimed>> {
        claim_for_workers_on(&self.client, slots_by_worker).await
    }

    /// Claims one suspect of the queue `default` and the kind `test`.
    pub async fn claim_alone(&self, worker: i64) -> Result<Option<Claimed>> {
        let (queues, kinds) = (["default".to_owned()], ["test".to_owned()]);
        Ok(engine::claim_alone(&self.client, worker, &queues, &kinds).await?)
    }

    /// Settles the job as done and keeps it in the history.
    pub async fn complete(&self, job: &Claimed) -> Result<Settled> {
        self.settle(job, Ending::done(History::All, Some(job.ctid))).await
    }

    /// Settles the job with this ending.
    pub async fn settle(&self, job: &Claimed, ending: Ending) -> Result<Settled> {
        let settlement = Settlement::new(job.claim, ending);
        match engine::settle(&self.client, &[settlement], &[]).await?.first() {
            Some(SettleResult::Written) => Ok(Settled::Written),
            Some(SettleResult::Already | SettleResult::Lost) => Ok(Settled::Lost),
            other => bail!("neither written nor lost: {other:?}"),
        }
    }

    /// Lets the lease of the job's holder expire. The next sweep declares that worker dead.
    pub async fn expire_holder(&self, job: &Claimed) -> Result<()> {
        let sql = "update pitwheel.worker
            set lease_until = clock_timestamp() - interval '1 second'
            where id = (select holder from pitwheel.job where id = $1)";
        self.client.execute(sql, &[&job.claim.id]).await?;
        Ok(())
    }

    /// Lets the lease of a worker expire.
    pub async fn expire(&self, worker: i64) -> Result<()> {
        let sql =
            "update pitwheel.worker set lease_until = clock_timestamp() - interval '1 second' where id = $1";
        self.client.execute(sql, &[&worker]).await?;
        Ok(())
    }

    /// Promotes the lanes that need it, as the maintenance of a node does.
    pub async fn promote(&self) -> Result<usize> {
        Ok(engine::promote_checked(&self.client, "0").await?.queues.len())
    }

    /// Sweeps at once, however recent the last sweep was.
    pub async fn sweep(&self) -> Result<Swept> {
        sweep_on(&self.client).await
    }

    /// The state of a job; `None` if there is no such job, live or finished.
    pub async fn state(&self, id: i64) -> Result<Option<State>> {
        match self.pitwheel.job(id).await {
            Ok(job) => Ok(Some(job.summary.state)),
            Err(Error::NotFound(..)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// How many sessions of this database wait for a lock. Tests run side by side on one server.
    pub async fn lock_waits(&self) -> Result<i64> {
        let sql = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
        self.count(sql).await
    }

    /// The number that a query returns.
    pub async fn count(&self, sql: &str) -> Result<i64> {
        Ok(self.client.query_one(sql, &[]).await?.get(0))
    }
}

/// Claims on this connection, which may be inside a transaction, from the start of the queue `default`.
pub(crate) async fn claim_on(client: &Client, worker: i64, slots: usize) -> Result<Vec<Claimed>> {
    let asks = [QueueSlots { queue: "default".to_owned(), slots }];
    let bounds = Cursor::new(["default"].into_iter()).bounds();
    let kinds = ["test".to_owned()];
    Ok(engine::claim(client, worker, &asks, &kinds, &bounds).await?)
}

/// Claims on this connection as a node does for its streams, from the start of the queue `default`.
pub(crate) async fn claim_for_workers_on(client: &Client, slots_by_worker: &[i64]) -> Result<Vec<Claimed>> {
    let (queues, kinds) = (["default".to_owned()], ["test".to_owned()]);
    let bounds = Cursor::new(["default"].into_iter()).bounds();
    Ok(engine::claim_for_workers(client, slots_by_worker, &queues, &kinds, &bounds).await?.jobs)
}

/// Sweeps on this connection: no tick is too early and no gap too long.
pub(crate) async fn sweep_on(client: &Client) -> Result<Swept> {
    Ok(engine::sweep(client, Duration::ZERO, LEASE).await?)
}
