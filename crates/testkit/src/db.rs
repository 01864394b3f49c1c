//! A database per test, and the engine's steps in the words of tests.

use std::time::Duration;

use anyhow::{Context, Result};
use pitwheel::engine::{self, Claimed, Cursor, Ending, QueueSlots, Registration, Settlement, Swept};
use pitwheel::{Error, History, Pitwheel, Settled, State};
use tokio_postgres::Client;

use crate::job::JobFactory;
use crate::server;

/// Far above what a test takes: the only lease that ends is the one a test makes older.
const LEASE: Duration = Duration::from_secs(3600);
/// What a failed attempt leaves in the job's errors.
pub(crate) const FAILED: &str =
    r#"{"attempt": 1, "cause": "error", "message": "failed in a test", "worker": "test"}"#;

/// A migrated, empty database of the test's own, dropped with it.
pub struct TestDb {
    server_url: String,
    name: String,
    url: String,
    client: Client,
    pitwheel: Pitwheel,
}

impl TestDb {
    /// Cloned from a migrated template, on the private server of this process or on that of `DATABASE_URL`.
    pub async fn new() -> Result<TestDb> {
        let server_url = server::server_url().await?;
        let admin = server::connect(&server_url).await?;
        let template = server::template(&admin, &server_url).await?;
        TestDb::copy_of(&template, server_url, &admin).await
    }

    /// A database in which nobody has migrated yet.
    pub async fn unmigrated() -> Result<TestDb> {
        let server_url = server::server_url().await?;
        let admin = server::connect(&server_url).await?;
        TestDb::copy_of("template1", server_url, &admin).await
    }

    async fn copy_of(template: &str, server_url: String, admin: &Client) -> Result<TestDb> {
        let name = server::create_database(admin, template).await?;
        let url = server::with_database(&server_url, &name)?;
        Ok(TestDb {
            client: server::connect(&url).await?,
            pitwheel: Pitwheel::connect(&url).await?,
            server_url,
            name,
            url,
        })
    }

    /// Where it is.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// A connected handle.
    pub fn pitwheel(&self) -> &Pitwheel {
        &self.pitwheel
    }

    /// A connection of the caller's own.
    pub async fn client(&self) -> Result<Client> {
        server::connect(&self.url).await
    }

    /// A job to insert.
    pub fn job(&self) -> JobFactory<'_> {
        JobFactory::new(&self.client)
    }

    /// Enters a worker with a long lease; its id.
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

    /// Claims one job for a worker of its own.
    pub async fn claim_one(&self) -> Result<Claimed> {
        let claimed = self.claim(1).await?;
        claimed.into_iter().next().context("nothing was due")
    }

    /// Claims up to `slots` jobs of the queue `default` and the kind `test` for a worker of its own.
    pub async fn claim(&self, slots: usize) -> Result<Vec<Claimed>> {
        let worker = self.register().await?;
        self.claim_as(worker, slots).await
    }

    /// Claims for a worker that is there already.
    pub async fn claim_as(&self, worker: i64, slots: usize) -> Result<Vec<Claimed>> {
        claim_on(&self.client, worker, slots).await
    }

    /// Settles the job as done, and remembers it.
    pub async fn complete(&self, job: &Claimed) -> Result<Settled> {
        self.settle(job, Ending::done(History::All, Some(job.ctid))).await
    }

    /// Settles the job as failed: it waits again after the delay.
    pub async fn retry(&self, job: &Claimed, delay: Duration) -> Result<Settled> {
        let ending = Ending::Retry { delay, error: FAILED.to_owned() };
        self.settle(job, ending).await
    }

    /// Gives the job back as if it had never been claimed.
    pub async fn release(&self, job: &Claimed) -> Result<Settled> {
        self.settle(job, Ending::Release).await
    }

    /// Ends the claim in the given way.
    pub async fn settle(&self, job: &Claimed, ending: Ending) -> Result<Settled> {
        let settlement = Settlement { claim: job.claim, ending };
        let settled = engine::settle(&self.client, &[settlement], &[]).await?;
        settled.first().copied().context("no answer for the claim")
    }

    /// Makes the lease of the job's holder older than it may be. A sweep does the rest.
    pub async fn expire_holder(&self, job: &Claimed) -> Result<()> {
        let sql = "update pitwheel.worker
            set lease_until = clock_timestamp() - interval '1 second'
            where id = (select holder from pitwheel.job where id = $1)";
        self.client.execute(sql, &[&job.claim.id]).await?;
        Ok(())
    }

    /// Makes a worker's lease older than it may be.
    pub async fn expire(&self, worker: i64) -> Result<()> {
        let sql =
            "update pitwheel.worker set lease_until = clock_timestamp() - interval '1 second' where id = $1";
        self.client.execute(sql, &[&worker]).await?;
        Ok(())
    }

    /// Sweeps at once, however short ago somebody did.
    pub async fn sweep(&self) -> Result<Swept> {
        sweep_on(&self.client).await
    }

    /// What became of a job; `None`: nothing is known of it.
    pub async fn state(&self, id: i64) -> Result<Option<State>> {
        match self.pitwheel.job(id).await {
            Ok(job) => Ok(Some(job.summary.state)),
            Err(Error::NotFound(..)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// One number, asked in SQL.
    pub async fn count(&self, sql: &str) -> Result<i64> {
        Ok(self.client.query_one(sql, &[]).await?.get(0))
    }
}

/// Claims on this connection, which may be inside a transaction, from the bottom of the queue `default`.
pub(crate) async fn claim_on(client: &Client, worker: i64, slots: usize) -> Result<Vec<Claimed>> {
    let asks = [QueueSlots { queue: "default".to_owned(), slots }];
    let bounds = Cursor::new(["default"].into_iter()).bounds();
    let kinds = ["test".to_owned()];
    Ok(engine::claim(client, worker, &asks, &kinds, &bounds).await?)
}

/// Sweeps on this connection: no tick is too early and no gap too long.
pub(crate) async fn sweep_on(client: &Client) -> Result<Swept> {
    Ok(engine::sweep(client, Duration::ZERO, LEASE).await?)
}

impl Drop for TestDb {
    fn drop(&mut self) {
        let url = self.server_url.clone();
        let sql = format!("drop database if exists {} with (force)", self.name);
        let drop_it = move || -> Result<()> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                server::connect(&url).await?.batch_execute(&sql).await?;
                Ok(())
            })
        };
        // A thread of its own, because the test's runtime is busy dropping this. A database that stays is no reason to fail.
        let _ = std::thread::spawn(drop_it).join();
    }
}
