//! The handle through which a program talks to the engine.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio_postgres::types::Type;

use crate::control::{self, Cancelled, Change, Changed, WorkerCommand};
use crate::db::{self, Pool, Sql};
use crate::enqueue::{self, Enqueued, Enqueuing};
use crate::error::Error;
use crate::hint::{self, Hints};
use crate::inspect::{
    self, AuditEntry, Filter, JobDetail, JobPage, JobSummary, KindSummary, QueueSummary, WorkerSummary,
};
use crate::job::NewJob;
use crate::metrics;
use crate::migrate::{self, MigrationStatus};
use crate::token::{self, Role, Token};

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
    actor: Arc<str>,
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
        Ok(Pitwheel { pool, hints: Arc::default(), actor: options.application.into() })
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
        let enqueued = enqueuing.finish();
        let told = jobs.iter().zip(&enqueued).map(|(job, answer)| (&*job.queue, &*job.kind, answer.is_new));
        metrics::enqueued(told);
        Ok(enqueued)
    }

    /// Tells idle workers that a queue has jobs, after you committed an enqueue of your own transaction. Optional: without
    /// it they are found at the next poll.
    pub async fn hint(&self, queue: &str) -> Result<(), Error> {
        self.hints.due(&self.pool.get().await?, queue).await
    }

    /// The same database, with changes that the audit log attributes to somebody else: a person, where this handle is a
    /// program that acts for one. By default it is the application's name.
    pub fn acting_as(&self, actor: &str) -> Pitwheel {
        Pitwheel { actor: actor.into(), ..self.clone() }
    }

    /// Cancels a job: at once when it waits, by asking its handler when it runs.
    pub async fn cancel(&self, id: i64) -> Result<Cancelled, Error> {
        let changed = self.change_one(id, Change::Cancel).await?;
        Ok(if changed == Changed::Requested { Cancelled::Requested } else { Cancelled::AtOnce })
    }

    /// Lets a dead or cancelled job live again, due now, with all its attempts before it.
    pub async fn retry(&self, id: i64) -> Result<(), Error> {
        self.change_one(id, Change::Retry).await.map(drop)
    }

    /// Changes up to 1,000 jobs in one statement; what it came to for each of them, in the order given.
    pub async fn change(&self, ids: &[i64], change: Change) -> Result<Vec<(i64, Changed)>, Error> {
        let connection = self.pool.get().await?;
        let outcome = control::change(&connection, &self.actor, ids, change).await?;
        if outcome.jobs.values().any(|changed| *changed == Changed::Requested) {
            log_unhinted(hint::cancel(&connection).await);
        }
        for queue in &outcome.due {
            log_unhinted(self.hints.due(&connection, queue).await);
        }
        let changed = |id: &i64| (*id, outcome.jobs.get(id).copied().unwrap_or(Changed::NotFound));
        Ok(ids.iter().map(changed).collect())
    }

    /// Changes the jobs of one page of a list; to change all that match, go on with `before` as the answer says, until it
    /// names no more. The filter must name a state.
    pub async fn change_matching(
        &self,
        filter: &Filter,
        change: Change,
    ) -> Result<(Vec<(i64, Changed)>, Option<i64>), Error> {
        if filter.state.is_none() {
            return Err(Error::Invalid("a change of all jobs that match must name their state".into()));
        }
        let page = self.jobs(filter).await?;
        let ids: Vec<i64> = page.jobs.iter().map(|job| job.id).collect();
        Ok((self.change(&ids, change).await?, page.next))
    }

    async fn change_one(&self, id: i64, change: Change) -> Result<Changed, Error> {
        match self.change(&[id], change).await?.first() {
            None | Some((_, Changed::NotFound)) => Err(Error::NotFound(id, change.missing())),
            Some((_, Changed::KeyTaken)) => Err(Error::KeyTaken(id)),
            Some((_, changed)) => Ok(*changed),
        }
    }

    /// Stops claims from a queue, or from all (`None`), on every node. What runs goes on.
    pub async fn pause(&self, queue: Option<&str>) -> Result<(), Error> {
        control::pause(&*self.pool.get().await?, &self.actor, queue).await
    }

    /// Ends a pause of a queue, or of all (`None`). False: it was not paused.
    pub async fn resume(&self, queue: Option<&str>) -> Result<bool, Error> {
        control::resume(&*self.pool.get().await?, &self.actor, queue).await
    }

    /// Tells a worker to take nothing more, to end, or to go on; it hears of it with its next renewal. False: no living
    /// worker has this id, or it drains already.
    pub async fn command_worker(&self, worker: i64, command: WorkerCommand) -> Result<bool, Error> {
        control::command_worker(&*self.pool.get().await?, &self.actor, worker, command).await
    }

    /// Whether payloads, metadata and results of a kind are kept from those who may only look.
    pub async fn redact(&self, kind: &str, redacted: bool) -> Result<(), Error> {
        control::redact(&*self.pool.get().await?, &self.actor, kind, redacted).await
    }

    /// Makes a token, good until a time or until it is revoked. Its secret is given back this once, and kept nowhere.
    pub async fn create_token(
        &self,
        name: &str,
        role: Role,
        expires_at: Option<SystemTime>,
    ) -> Result<(Token, String), Error> {
        token::create(&*self.pool.get().await?, &self.actor, name, role, expires_at).await
    }

    /// Servers refuse the token from now on, within two seconds, and end its streams. False: there is no such token.
    pub async fn revoke_token(&self, name: &str) -> Result<bool, Error> {
        token::revoke(&*self.pool.get().await?, &self.actor, name).await
    }

    /// The tokens that were not revoked, by name.
    pub async fn tokens(&self) -> Result<Vec<Token>, Error> {
        token::tokens(&*self.pool.get().await?).await
    }

    /// The time, by the clock that decides what is due and what has expired.
    pub async fn now(&self) -> Result<SystemTime, Error> {
        let rows = db::query(&*self.pool.get().await?, "select clock_timestamp()", &[]).await?;
        rows.first().map(|row| row.get(0)).ok_or_else(|| Error::Invalid("the clock does not answer".into()))
    }

    /// One job, live or finished.
    pub async fn job(&self, id: i64) -> Result<JobDetail, Error> {
        inspect::job(&*self.pool.get().await?, id).await
    }

    /// Jobs, newest first, a page at a time.
    pub async fn jobs(&self, filter: &Filter) -> Result<JobPage, Error> {
        inspect::jobs(&*self.pool.get().await?, filter).await
    }

    /// How these jobs stand; those that are not there are left out.
    pub async fn jobs_by_id(&self, ids: &[i64]) -> Result<Vec<JobSummary>, Error> {
        inspect::jobs_by_id(&*self.pool.get().await?, ids).await
    }

    /// Every queue that has live jobs or was paused; one named `*` while all are paused.
    pub async fn queues(&self) -> Result<Vec<QueueSummary>, Error> {
        inspect::queues(&*self.pool.get().await?).await
    }

    /// Workers, newest first, a page at a time: those with an id below `before`, at most `limit`, fifty when it is 0. Those
    /// that ended in the last day, too, with `dead`.
    pub async fn workers(
        &self,
        before: Option<i64>,
        limit: usize,
        dead: bool,
    ) -> Result<Vec<WorkerSummary>, Error> {
        inspect::workers(&*self.pool.get().await?, before, limit, dead).await
    }

    /// Kinds about which something was said, and those that living workers run.
    pub async fn kinds(&self) -> Result<Vec<KindSummary>, Error> {
        inspect::kinds(&*self.pool.get().await?).await
    }

    /// Who changed what, newest first, a page at a time, as [`Pitwheel::workers`].
    pub async fn audit(&self, before: Option<i64>, limit: usize) -> Result<Vec<AuditEntry>, Error> {
        inspect::audit(&*self.pool.get().await?, before, limit).await
    }

    /// Drops the history of jobs that finished longer ago than this, whole days at a time, and makes room for the days to
    /// come. Workers do it hourly. Returns how many days were dropped.
    pub async fn prune_history(&self, keep: Duration) -> Result<i32, Error> {
        let seconds = keep.as_secs_f64();
        let sql = "select pitwheel.prune_history(make_interval(secs => $1))";
        let connection = self.pool.get().await?;
        let begun = Instant::now();
        let rows = db::query(&connection, sql, &[(&seconds, Type::FLOAT8)]).await?;
        connection.execute_typed(include_str!("../sql/prune_audit.sql"), &[]).await?;
        metrics::maintained("prune", begun.elapsed());
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
