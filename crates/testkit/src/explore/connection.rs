//! The connection of a session, and the engine's steps on it, each with a short text as its output.

use anyhow::{Context as _, Result, bail};
use pitwheel::engine::{self, Ctid, Ending, Renewed, SettleResult, Settlement};
use pitwheel::{Claim, Context, History, NewJob, Settled, transaction};
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::test_db::{claim_for_workers_on, claim_on, sweep_on};

/// The entry that a failed attempt adds to the job's errors.
const FAILED: &str = r#"{"attempt": 1, "cause": "error", "message": "failed in a test", "worker": "test"}"#;

/// A session's connection, and what its earlier steps left for its later ones.
pub struct Connection {
    /// The connection; inside a transaction if an earlier step began one.
    pub client: Client,
    /// What this session claimed in this schedule.
    pub claims: Vec<Claim>,
    /// Where the row of the job to settle was when this session last read it.
    pub ctid: Option<Ctid>,
}

impl Connection {
    /// Claims for this worker, and keeps the claims; returns the ids of the jobs.
    pub async fn claim(&mut self, worker: i64, slots: usize) -> Result<String> {
        let claimed = claim_on(&self.client, worker, slots).await?;
        Ok(self.keep(claimed.iter().map(|job| job.claim)))
    }

    /// Claims as a node does for its streams, one job for each entry of `slots_by_worker`; returns the ids of the jobs.
    pub async fn claim_for_workers(&mut self, slots_by_worker: &[i64]) -> Result<String> {
        let claimed = claim_for_workers_on(&self.client, slots_by_worker).await?;
        Ok(self.keep(claimed.iter().map(|job| job.claim)))
    }

    fn keep(&mut self, claims: impl Iterator<Item = Claim>) -> String {
        let earlier = self.claims.len();
        self.claims.extend(claims);
        let ids: Vec<String> = self.claims[earlier..].iter().map(|claim| claim.id.to_string()).collect();
        ids.join(",")
    }

    /// Keeps the ctid of a job's row, as a claim does.
    pub async fn read_ctid(&mut self, id: i64) -> Result<String> {
        let row = self.client.query_one("select ctid from pitwheel.job where id = $1", &[&id]).await?;
        self.ctid = Some(row.get(0));
        Ok("read".to_owned())
    }

    /// Settles as done; returns `written` or `lost`.
    pub async fn complete(&self, claim: Claim) -> Result<String> {
        self.settle(claim, Ending::done(History::All, self.ctid)).await
    }

    /// Settles as done, with one follower of the kind `test`; returns `written` or `lost`.
    pub async fn complete_then(&self, claim: Claim) -> Result<String> {
        let then = vec![NewJob::raw("test", "{}")];
        self.settle(claim, Ending::Done { history: History::All, ctid: None, result: None, then }).await
    }

    /// Settles as failed, to be retried at once; returns `written` or `lost`.
    pub async fn retry(&self, claim: Claim) -> Result<String> {
        let (delay, error) = (std::time::Duration::ZERO, FAILED.to_owned());
        self.settle(claim, Ending::Retry { delay, error }).await
    }

    async fn settle(&self, claim: Claim, ending: Ending) -> Result<String> {
        self.write(Settlement::new(claim, ending)).await
    }

    /// Settles with this ending; returns `written` or `lost`.
    pub async fn write(&self, settlement: Settlement) -> Result<String> {
        let (claim, batch) = (settlement.claim, [settlement]);
        loop {
            let results = engine::settle(&self.client, &batch, &[]).await?;
            match results.first().context("no result for the claim")? {
                SettleResult::Written => return Ok(text(Settled::Written).to_owned()),
                SettleResult::Already | SettleResult::Lost => return Ok(text(Settled::Lost).to_owned()),
                SettleResult::Refused(problem) => bail!("{problem}"),
                // A worker comes back to it later; here it is waited for, as a part of the schedule.
                SettleResult::Locked => {
                    let sql = include_str!("../../../pitwheel/sql/engine/lock_claim.sql");
                    self.client.query(sql, &[&claim.id, &claim.fence, &claim.holder]).await?;
                }
            }
        }
    }

    /// Begins a transaction and completes the handler's job in it, as a handler would; returns `written` or `lost`.
    pub async fn begin_and_complete(&mut self, context: &Context) -> Result<String> {
        let transaction = self.client.transaction().await?;
        let settled = transaction::tokio_postgres::complete(&transaction, context).await?;
        // The transaction stays open for the next steps, which end it in SQL.
        std::mem::forget(transaction);
        Ok(text(settled).to_owned())
    }

    /// Begins a transaction and enqueues a job with this key in it; returns the job's id.
    pub async fn begin_and_enqueue(&mut self, key: &str) -> Result<String> {
        let transaction = self.client.transaction().await?;
        let job = NewJob::raw("test", "{}").key(key);
        let enqueued = transaction::tokio_postgres::enqueue(&transaction, [job]).await?;
        std::mem::forget(transaction);
        Ok(enqueued.first().context("no result for the job")?.id.to_string())
    }

    /// Renews the lease; returns `written` or `lost`.
    pub async fn renew(&self, worker: i64) -> Result<String> {
        let lost = engine::renew(&self.client, worker).await? == Renewed::Dead;
        Ok(text(if lost { Settled::Lost } else { Settled::Written }).to_owned())
    }

    /// Sweeps at once; returns how many jobs of dead workers were settled.
    pub async fn sweep(&self) -> Result<String> {
        let swept = sweep_on(&self.client).await?;
        Ok((swept.released + swept.buried).to_string())
    }

    /// Runs the SQL; returns the values of its rows, with `,` between values and `;` between rows.
    pub async fn query(&self, sql: &str) -> Result<String> {
        let messages = self.client.simple_query(sql).await?;
        let rows = messages.iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => {
                let values: Vec<&str> = (0..row.len()).map(|at| row.get(at).unwrap_or("null")).collect();
                Some(values.join(","))
            }
            _ => None,
        });
        Ok(rows.collect::<Vec<_>>().join(";"))
    }
}

fn text(settled: Settled) -> &'static str {
    match settled {
        Settled::Written => "written",
        Settled::Lost => "lost",
    }
}
