//! Where a session of an exploration acts: its connection, and the engine's steps on it, answered in a word or two.

use anyhow::{Context as _, Result};
use pitwheel::engine::{self, Ctid, Cursor, Ending, Renewed, Settlement};
use pitwheel::{Claim, Context, History, NewJob, Settled, transaction};
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::db::{FAILED, claim_on, sweep_on};

/// A session's connection, and what its earlier steps left for its later ones.
pub struct Stage {
    /// The connection; inside a transaction if an earlier step began one.
    pub client: Client,
    /// What was claimed in this schedule.
    pub claims: Vec<Claim>,
    /// Where the job to be settled stood when this session last looked.
    pub ctid: Option<Ctid>,
}

impl Stage {
    /// Claims for this worker, and remembers what; says the ids.
    pub async fn claim(&mut self, worker: i64, slots: usize) -> Result<String> {
        let claimed = claim_on(&self.client, worker, slots).await?;
        self.claims.extend(claimed.iter().map(|job| job.claim));
        let ids: Vec<String> = claimed.iter().map(|job| job.claim.id.to_string()).collect();
        Ok(ids.join(","))
    }

    /// Claims as a node does for its streams, one job for each of the slots_by_worker; says the ids.
    pub async fn claim_for_workers(&mut self, slots_by_worker: &[i64]) -> Result<String> {
        let queues = ["default".to_owned()];
        let bounds = Cursor::new(["default"].into_iter()).bounds();
        let claimed =
            engine::claim_for_workers(&self.client, slots_by_worker, &queues, &["test".to_owned()], &bounds)
                .await?;
        self.claims.extend(claimed.iter().map(|job| job.claim));
        let ids: Vec<String> = claimed.iter().map(|job| job.claim.id.to_string()).collect();
        Ok(ids.join(","))
    }

    /// Remembers where the row of a job stands, as a claim does.
    pub async fn look_up(&mut self, id: i64) -> Result<String> {
        let row = self.client.query_one("select ctid from pitwheel.job where id = $1", &[&id]).await?;
        self.ctid = Some(row.get(0));
        Ok("seen".to_owned())
    }

    /// Settles as done; says `written` or `lost`.
    pub async fn complete(&self, claim: Claim) -> Result<String> {
        self.settle(claim, Ending::done(History::All, self.ctid)).await
    }

    /// Settles as done, with one follower of the kind `test`; says `written` or `lost`.
    pub async fn complete_then(&self, claim: Claim) -> Result<String> {
        let then = vec![NewJob::raw("test", "{}")];
        self.settle(claim, Ending::Done { history: History::All, ctid: None, result: None, then }).await
    }

    /// Settles as failed, to be tried again at once; says `written` or `lost`.
    pub async fn retry(&self, claim: Claim) -> Result<String> {
        let ending = Ending::Retry { delay: std::time::Duration::ZERO, error: FAILED.to_owned() };
        self.settle(claim, ending).await
    }

    async fn settle(&self, claim: Claim, ending: Ending) -> Result<String> {
        let settled = engine::settle(&self.client, &[Settlement { claim, ending }], &[]).await?;
        let settled = settled.first().context("no answer for the claim")?;
        Ok(word(*settled).to_owned())
    }

    /// Begins a transaction and completes the handler's job in it, as a handler would; says `written` or `lost`.
    pub async fn begin_and_complete(&mut self, context: &Context) -> Result<String> {
        let transaction = self.client.transaction().await?;
        let settled = transaction::tokio_postgres::complete(&transaction, context).await?;
        // It stays open for the steps to come, which end it in SQL.
        std::mem::forget(transaction);
        Ok(word(settled).to_owned())
    }

    /// Begins a transaction and enqueues a job with this key in it; says its id.
    pub async fn begin_and_enqueue(&mut self, key: &str) -> Result<String> {
        let transaction = self.client.transaction().await?;
        let job = NewJob::raw("test", "{}").key(key);
        let enqueued = transaction::tokio_postgres::enqueue(&transaction, [job]).await?;
        std::mem::forget(transaction);
        Ok(enqueued.first().context("no answer for the job")?.id.to_string())
    }

    /// Moves the lease on; says `written` or `lost`.
    pub async fn renew(&self, worker: i64) -> Result<String> {
        let lost = engine::renew(&self.client, worker).await? == Renewed::Dead;
        Ok(word(if lost { Settled::Lost } else { Settled::Written }).to_owned())
    }

    /// Sweeps at once; says how many jobs were taken from the dead.
    pub async fn sweep(&self) -> Result<String> {
        let swept = sweep_on(&self.client).await?;
        Ok((swept.released + swept.buried).to_string())
    }

    /// The values of what the SQL returns, rows separated by `;`.
    pub async fn ask(&self, sql: &str) -> Result<String> {
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

fn word(settled: Settled) -> &'static str {
    match settled {
        Settled::Written => "written",
        Settled::Lost => "lost",
    }
}
