//! The handle for recurring jobs. It only delegates.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use crate::engine::hint::{Hints, log_unhinted};
use crate::error::Error;
use crate::job::cadence::Cadence;
use crate::job::misfire::Misfire;
use crate::job::new_recurring::NewRecurring;
use crate::operate::jobs::JobSummary;
use crate::operate::recurring::{
    self, Created, RecurringDetail, RecurringFilter, RecurringJob, RecurringPage, RunNow,
};
use crate::postgres::Pool;

/// Recurring jobs: each has a definition and, while it is enabled, one live job, its next run. Made by
/// [`Pitwheel::recurring`](crate::Pitwheel::recurring).
#[derive(Clone)]
pub struct RecurringJobs {
    pool: Pool,
    hints: Arc<Hints>,
    actor: Arc<str>,
}

impl RecurringJobs {
    pub(crate) fn new(pool: Pool, hints: Arc<Hints>, actor: Arc<str>) -> RecurringJobs {
        RecurringJobs { pool, hints, actor }
    }

    /// Creates a recurring job. If its kind has one with this key, that is enabled and gets this definition. A changed cadence is
    /// planned anew; otherwise the time of the next run stays, or is now if it has passed. Safe to repeat.
    pub async fn create(&self, new: NewRecurring) -> Result<Created, Error> {
        recurring::only(self.create_many([new]).await?)
    }

    /// Creates many recurring jobs, 500 per statement; each statement commits by itself. The results are in the order given.
    pub async fn create_many(
        &self,
        new: impl IntoIterator<Item = NewRecurring>,
    ) -> Result<Vec<Created>, Error> {
        let new: Vec<NewRecurring> = new.into_iter().collect();
        let created = recurring::create(&self.pool.get().await?, Some(&self.actor), &new).await?;
        self.hint(created.iter().filter_map(|created| created.due.as_deref())).await;
        Ok(created)
    }

    /// One recurring job.
    pub async fn get(&self, id: i64) -> Result<RecurringDetail, Error> {
        recurring::get(&self.pool.get().await?, id).await
    }

    /// The recurring job of this kind and key.
    pub async fn find(&self, kind: &str, key: &str) -> Result<Option<RecurringDetail>, Error> {
        recurring::find(&self.pool.get().await?, kind, key).await
    }

    /// Recurring jobs, newest first, one page at a time.
    pub async fn list(&self, filter: &RecurringFilter) -> Result<RecurringPage, Error> {
        recurring::list(&self.pool.get().await?, filter).await
    }

    /// Enables a recurring job: it runs at the time that was kept, or now if it has passed.
    pub async fn enable(&self, id: i64) -> Result<RecurringJob, Error> {
        let client = self.pool.get().await?;
        let changed = recurring::enable(&client, Some(&self.actor), id).await?;
        self.hint(changed.due.as_deref()).await;
        Ok(recurring::get(&client, id).await?.summary)
    }

    /// Disables a recurring job: no run starts after this. A run in progress finishes. The time of the next run is kept.
    pub async fn disable(&self, id: i64) -> Result<RecurringJob, Error> {
        let client = self.pool.get().await?;
        recurring::disable(&client, Some(&self.actor), id).await?;
        Ok(recurring::get(&client, id).await?.summary)
    }

    /// Makes the next run due now, in addition to the planned ones. Fails if the recurring job is disabled.
    pub async fn run_now(&self, id: i64) -> Result<RunNow, Error> {
        let (run, queue) = recurring::run_now(&self.pool.get().await?, &self.actor, id).await?;
        self.hint((run == RunNow::Due).then_some(&*queue)).await;
        Ok(run)
    }

    /// Gives a recurring job another cadence; `None` keeps its misfire policy. It is planned anew, one interval from now. A run
    /// in progress finishes. A disabled one stays disabled.
    pub async fn change(
        &self,
        id: i64,
        cadence: &Cadence,
        misfire: Option<Misfire>,
    ) -> Result<RecurringJob, Error> {
        let client = self.pool.get().await?;
        recurring::change(&client, &self.actor, id, cadence, misfire).await?;
        Ok(recurring::get(&client, id).await?.summary)
    }

    /// Deletes a recurring job. A run in progress finishes; nothing follows it. False: there is none with this id.
    pub async fn delete(&self, id: i64) -> Result<bool, Error> {
        recurring::delete(&self.pool.get().await?, &self.actor, id).await
    }

    /// The next times at which it runs, at most 1,000, as if it stayed as it is. After the first without jitter.
    pub async fn next_times(&self, id: i64, count: usize) -> Result<Vec<SystemTime>, Error> {
        recurring::times(&self.get(id).await?, count)
    }

    /// Its runs, live and finished, newest first, one page at a time: ids below `before`, at most `limit` (50 when it is 0).
    /// Finished ones are listed as long as the history keeps them.
    pub async fn runs(&self, id: i64, before: Option<i64>, limit: usize) -> Result<Vec<JobSummary>, Error> {
        recurring::runs(&self.pool.get().await?, id, before, limit).await
    }

    async fn hint<'a>(&self, queues: impl IntoIterator<Item = &'a str>) {
        let queues: BTreeSet<&str> = queues.into_iter().collect();
        for queue in queues {
            let hinted = async { self.hints.due(&self.pool.get().await?, queue).await };
            log_unhinted(hinted.await);
        }
    }
}
