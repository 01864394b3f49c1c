//! The handle through which a program talks to the engine.

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::types::Type;

use crate::control::{self, Cancelled};
use crate::db::{self, Pool, Sql};
use crate::enqueue::{self, Enqueued, Enqueuing};
use crate::error::Error;
use crate::hint::{self, Hints};
use crate::inspect::{self, Filter, JobDetail, JobSummary, QueueSummary};
use crate::job::NewJob;
use crate::migrate::{self, MigrationStatus};

/// How to connect.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// How many connections this handle may open. A worker adds up to five of its own.
    pub connections: usize,
    /// The name the connections bear in `pg_stat_activity`, unless the URL gives one.
    pub application: String,
}

impl Default for Options {
    fn default() -> Options {
        Options { connections: 8, application: "pitwheel".to_owned() }
    }
}

/// A database with the engine in it. Cheap to clone; clones share their connections.
#[derive(Clone)]
pub struct Pitwheel {
    pub(crate) pool: Pool,
    hints: Arc<Hints>,
}

impl Pitwheel {
    /// Connects, and fails at once if the database cannot be reached. TLS is used, and verified, when the URL says
    /// `sslmode=require`.
    pub async fn connect(url: &str) -> Result<Pitwheel, Error> {
        Pitwheel::connect_with(url, Options::default()).await
    }

    /// Connects with options of your own.
    pub async fn connect_with(url: &str, options: Options) -> Result<Pitwheel, Error> {
        let pool = Pool::new(url, &options.application, options.connections.max(1))?;
        drop(pool.get().await?);
        Ok(Pitwheel { pool, hints: Arc::default() })
    }

    /// Brings the schema up to this version; safe to call from every node at every start. Returns what was applied.
    pub async fn migrate(&self) -> Result<Vec<&'static str>, Error> {
        migrate::migrate(&self.pool).await
    }

    /// Where the schema stands.
    pub async fn migration_status(&self) -> Result<MigrationStatus, Error> {
        migrate::status(&*self.pool.get().await?).await
    }

    /// Refuses a schema that this version cannot work with.
    pub async fn check_schema(&self) -> Result<(), Error> {
        migrate::check(&*self.pool.get().await?).await
    }

    /// Enqueues one job. Once this returns, the job is not lost.
    ///
    /// Safe to repeat after an error if the job has a key.
    pub async fn enqueue(&self, job: impl Into<NewJob>) -> Result<Enqueued, Error> {
        let enqueued = self.enqueue_many([job]).await?;
        enqueued.first().copied().ok_or_else(|| Error::Invalid("no answer for the job".into()))
    }

    /// Enqueues many jobs, 500 a statement; each statement is committed by itself. The answers are in the order given.
    pub async fn enqueue_many<T: Into<NewJob>>(
        &self,
        jobs: impl IntoIterator<Item = T>,
    ) -> Result<Vec<Enqueued>, Error> {
        let jobs: Vec<NewJob> = jobs.into_iter().map(Into::into).collect();
        let connection = self.pool.get().await?;
        let client = &connection;
        let mut enqueuing = Enqueuing::new(&jobs)?;
        while let Some(columns) = enqueuing.next()? {
            let due = due_queues(&columns);
            let (sql, types) = enqueue::statement(&columns);
            client.ready(sql, types).await?;
            // Sent behind the insert on the same connection, so it is committed after it and costs no wait of its own.
            let hints = async {
                for queue in &due {
                    self.hints.due(client, queue).await?;
                }
                Ok(())
            };
            let (answers, hinted) = tokio::join!(enqueue::send(client, columns), hints);
            log_unhinted(hinted);
            enqueuing.answered(answers?);
        }
        Ok(enqueuing.finish())
    }

    /// Tells idle workers that a queue has jobs, after you committed an enqueue of your own transaction. Optional: without
    /// it they are found at the next poll.
    pub async fn hint(&self, queue: &str) -> Result<(), Error> {
        self.hints.due(&self.pool.get().await?, queue).await
    }

    /// Cancels a job: at once when it waits, by asking its handler when it runs.
    pub async fn cancel(&self, id: i64) -> Result<Cancelled, Error> {
        let connection = self.pool.get().await?;
        let cancelled = control::cancel(&connection, id).await?;
        if cancelled == Cancelled::Requested {
            log_unhinted(hint::cancel(&connection).await);
        }
        Ok(cancelled)
    }

    /// Lets a dead or cancelled job live again, due now, with all its attempts before it.
    pub async fn retry(&self, id: i64) -> Result<(), Error> {
        let connection = self.pool.get().await?;
        let queue = control::retry(&connection, id).await?;
        log_unhinted(self.hints.due(&connection, &queue).await);
        Ok(())
    }

    /// Stops claims from a queue, or from all (`None`), on every node. What runs goes on.
    pub async fn pause(&self, queue: Option<&str>) -> Result<(), Error> {
        control::pause(&*self.pool.get().await?, queue).await
    }

    /// Ends a pause of a queue, or of all (`None`). False: it was not paused.
    pub async fn resume(&self, queue: Option<&str>) -> Result<bool, Error> {
        control::resume(&*self.pool.get().await?, queue).await
    }

    /// One job, live or finished.
    pub async fn job(&self, id: i64) -> Result<JobDetail, Error> {
        inspect::job(&*self.pool.get().await?, id).await
    }

    /// Jobs, newest first, a page at a time.
    pub async fn jobs(&self, filter: &Filter) -> Result<Vec<JobSummary>, Error> {
        inspect::jobs(&*self.pool.get().await?, filter).await
    }

    /// Every queue that has live jobs or was paused; one named `*` while all are paused.
    pub async fn queues(&self) -> Result<Vec<QueueSummary>, Error> {
        inspect::queues(&*self.pool.get().await?).await
    }

    /// Drops the history of jobs that finished longer ago than this, whole days at a time, and makes room for the days to
    /// come. Workers do it hourly. Returns how many days were dropped.
    pub async fn prune_history(&self, keep: Duration) -> Result<i32, Error> {
        let seconds = keep.as_secs_f64();
        let sql = "select pitwheel.prune_history(make_interval(secs => $1))";
        let rows = db::query(&*self.pool.get().await?, sql, &[(&seconds, Type::FLOAT8)]).await?;
        Ok(rows.first().map_or(0, |row| row.get(0)))
    }
}

/// The queues of a batch in which something is due at once.
fn due_queues<'a>(columns: &enqueue::Columns<'a>) -> Vec<&'a str> {
    let due = |at: &usize| columns.delays_ms[*at] == 0 && columns.run_ats_us[*at].is_none();
    let mut queues: Vec<&str> = (0..columns.queues.len()).filter(due).map(|at| columns.queues[at]).collect();
    queues.sort_unstable();
    queues.dedup();
    queues
}

/// A hint that could not be sent costs a poll's time, no more.
fn log_unhinted(hinted: Result<(), Error>) {
    if let Err(error) = hinted {
        tracing::debug!(%error, "a wake-up hint was not sent");
    }
}
