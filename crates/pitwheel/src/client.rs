//! The handle through which a program uses the engine: calls of the engine on a pool, and the hints that follow them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::engine::enqueue::{self, Enqueued, Enqueuing};
use crate::engine::hint::{self, Hints, log_unhinted};
use crate::engine::lanes;
use crate::engine::maintenance;
use crate::engine::token::Role;
use crate::error::Error;
use crate::job::lane::Lane;
use crate::job::new_job::NewJob;
use crate::metrics;
use crate::operate::audit::{self, AuditEntry};
use crate::operate::change::{self, Cancelled, Change, Changed};
use crate::operate::jobs::{self, Filter, JobDetail, JobPage, JobSummary};
use crate::operate::kinds::{self, KindSummary};
use crate::operate::lanes::{self as lane_views, CurrentJob, LaneFilter};
use crate::operate::outbox::Outbox;
use crate::operate::pipelines::Pipelines;
use crate::operate::queues::{self, QueueSummary};
use crate::operate::recover;
use crate::operate::recurring_jobs::RecurringJobs;
use crate::operate::tokens::{self, Token};
use crate::operate::workers::{self, WorkerCommand, WorkerSummary};
use crate::postgres::migrate::{self, MigrationStatus};
use crate::postgres::{Pool, Session, Sql, query};

/// How long the hints for one batch of endings may take: what writes endings waits for them.
const HINTS_MAX: Duration = Duration::from_secs(2);

/// How to connect.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// The maximum number of connections of this handle. A worker opens up to seven more.
    pub connections: usize,
    /// The `application_name` of the connections, unless the URL has one.
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
    pool: Pool,
    hints: Arc<Hints>,
    actor: Arc<str>,
}

impl Pitwheel {
    /// Connects, and fails at once if the database cannot be reached. TLS is used, and verified, when the URL has
    /// `sslmode=require`.
    pub async fn connect(url: &str) -> Result<Pitwheel, Error> {
        Pitwheel::connect_with(url, Options::default()).await
    }

    /// Connects with options.
    pub async fn connect_with(url: &str, options: Options) -> Result<Pitwheel, Error> {
        let pool =
            Pool::new(url, &options.application, options.connections.max(1))?.on_error(metrics::failed);
        drop(pool.get().await?);
        let hints = Arc::new(Hints::new(pool.clone()));
        Ok(Pitwheel { pool, hints, actor: options.application.into() })
    }

    /// A pool for the loops of a worker or a server on the same database. A statement on it is given up after `limit`, at
    /// most 30 seconds.
    pub fn pool_for_loops(&self, connections: usize, limit: Duration) -> Result<crate::engine::Pool, Error> {
        self.pool.for_loops(connections, limit)
    }

    /// The same database over connections of its own, for probes: busy callers of this handle do not delay them, and a statement is given
    /// up after `limit`.
    pub fn for_probes(&self, connections: usize, limit: Duration) -> Result<Pitwheel, Error> {
        Ok(Pitwheel { pool: self.pool.for_loops(connections, limit)?, ..self.clone() })
    }

    /// Brings the schema up to this version; safe to call from every node at every start. Returns the names of the
    /// migrations that were applied.
    pub async fn migrate(&self) -> Result<Vec<&'static str>, Error> {
        migrate::migrate(&self.pool).await
    }

    /// The version of the schema, and which migrations are pending.
    pub async fn migration_status(&self) -> Result<MigrationStatus, Error> {
        migrate::status(&self.pool.get().await?).await
    }

    /// Fails if this version cannot work with the schema.
    pub async fn check_schema(&self) -> Result<(), Error> {
        migrate::check(&self.pool.get().await?).await
    }

    /// Enqueues one job. Once this returns, the job is not lost.
    ///
    /// Safe to repeat after an error if the job has a key.
    pub async fn enqueue(&self, job: impl Into<NewJob>) -> Result<Enqueued, Error> {
        enqueue::only(self.enqueue_many([job]).await?)
    }

    /// Enqueues many jobs, 500 per statement; each statement commits by itself. The results are in the order of the jobs.
    pub async fn enqueue_many<T: Into<NewJob>>(
        &self,
        jobs: impl IntoIterator<Item = T>,
    ) -> Result<Vec<Enqueued>, Error> {
        let jobs: Vec<NewJob> = jobs.into_iter().map(Into::into).collect();
        let connection = self.pool.get().await?;
        let client = &connection;
        let mut enqueuing = Enqueuing::new(&jobs)?;
        while let Some(columns) = enqueuing.next()? {
            let due = columns.due_queues();
            let (sql, types) = enqueue::statement(&columns);
            client.ready(sql, types).await?;
            // Sent behind the insert on the same connection, so it commits after it and costs no extra round trip.
            let hints = async {
                for queue in &due {
                    self.hints.due(client, queue).await?;
                }
                Ok(())
            };
            let (inserted, hinted) = tokio::join!(enqueue::send(client, columns, true), hints);
            log_unhinted(hinted);
            enqueuing.inserted(inserted?);
        }
        let enqueued = enqueuing.finish();
        let counted = jobs.iter().zip(&enqueued).map(|(job, one)| (&*job.queue, &*job.kind, one.is_new));
        metrics::enqueued(counted);
        Ok(enqueued)
    }

    /// Wakes idle workers of a queue, after you committed an enqueue in your own transaction. Optional: without it they find
    /// the job at their next poll.
    pub async fn hint(&self, queue: &str) -> Result<(), Error> {
        self.hints.due(&self.pool.get().await?, queue).await
    }

    /// Wakes idle workers for the jobs that followed from endings and are due now, and counts them. A hint that fails, or takes longer
    /// than two seconds, delays a job until the next poll, no more.
    pub async fn hint_followers(&self, followers: impl Iterator<Item = &NewJob>) {
        let followers: Vec<&NewJob> = followers.collect();
        if followers.is_empty() {
            return;
        }
        metrics::enqueued(followers.iter().map(|job| (&*job.queue, &*job.kind, true)));
        let named: Vec<&str> =
            followers.iter().filter_map(|job| job.lane.as_ref().map(Lane::as_json)).collect();
        let due = followers.iter().filter(|job| job.is_due());
        self.promote_and_hint(&named, &due.map(|job| &*job.queue).collect()).await;
    }

    /// Wakes idle workers of queues in which pipelines have new jobs that are due. A hint that fails, or takes longer than two seconds,
    /// delays a job until the next poll, no more.
    pub async fn hint_due(&self, queues: &BTreeSet<String>) {
        self.promote_and_hint(&[], &queues.iter().map(String::as_str).collect()).await;
    }

    /// Promotes these lanes at once, which the maintenance of any node does within a second, and wakes idle workers of these queues.
    async fn promote_and_hint(&self, named: &[&str], queues: &BTreeSet<&str>) {
        if named.is_empty() && queues.is_empty() {
            return;
        }
        let hints = async |client: Arc<Session>| {
            let promoted = lanes::promote_lanes(&client, named).await.map(drop);
            for queue in queues {
                self.hints.due(&client, queue).await?;
            }
            promoted
        };
        log_unhinted(self.pool.run_within(HINTS_MAX, hints).await);
    }

    /// The same database, with another actor in the audit log: for a program that makes changes for a person. The default
    /// is the application's name.
    pub fn acting_as(&self, actor: &str) -> Pitwheel {
        Pitwheel { actor: actor.into(), ..self.clone() }
    }

    /// Recurring jobs.
    pub fn recurring(&self) -> RecurringJobs {
        RecurringJobs::new(self.pool.clone(), self.hints.clone(), self.actor.clone())
    }

    /// Pipelines.
    pub fn pipelines(&self) -> Pipelines {
        Pipelines::new(self.pool.clone(), self.hints.clone(), self.actor.clone())
    }

    /// The outbox.
    pub fn outbox(&self) -> Outbox {
        Outbox::new(self.pool.clone(), self.actor.clone())
    }

    /// Cancels a job. A waiting job is cancelled at once; the handler of a running job is asked to stop.
    pub async fn cancel(&self, id: i64) -> Result<Cancelled, Error> {
        let changed = self.change_one(id, Change::Cancel).await?;
        Ok(if changed == Changed::Requested { Cancelled::Requested } else { Cancelled::AtOnce })
    }

    /// Enqueues a dead or cancelled job again, due now, with all its attempts.
    pub async fn retry(&self, id: i64) -> Result<(), Error> {
        self.change_one(id, Change::Retry).await.map(drop)
    }

    /// Lets a running job wait again whose worker has not renewed its lease for `stale`: due now, with all its attempts. Its former
    /// worker can write nothing more. Sweeps find such jobs much sooner; this is for a person.
    ///
    /// # Errors
    /// [`Error::NotStale`] if it is not running, or its worker has renewed its lease.
    pub async fn recover(&self, id: i64, stale: Duration) -> Result<(), Error> {
        let connection = self.pool.get().await?;
        let queue = recover::recover(&connection, &self.actor, id, stale).await?;
        log_unhinted(self.hints.due(&connection, &queue).await);
        Ok(())
    }

    /// Changes up to 1,000 jobs in one statement. Returns the result for each id, in the order given.
    pub async fn change(&self, ids: &[i64], change: Change) -> Result<Vec<(i64, Changed)>, Error> {
        let connection = self.pool.get().await?;
        let report = change::change(&connection, &self.actor, ids, change).await?;
        if report.jobs.values().any(|changed| *changed == Changed::Requested) {
            log_unhinted(hint::cancel(&connection).await);
        }
        let named: Vec<&str> = report.lanes.iter().map(String::as_str).collect();
        log_unhinted(lanes::promote_lanes(&connection, &named).await.map(drop));
        for queue in &report.due {
            log_unhinted(self.hints.due(&connection, queue).await);
        }
        let changed = |id: &i64| (*id, report.jobs.get(id).copied().unwrap_or(Changed::NotFound));
        Ok(ids.iter().map(changed).collect())
    }

    /// Changes the jobs of one page of a list. To change all that match, repeat with `before` set to the returned id until it
    /// is `None`. The filter must name a state.
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

    /// Stops claims from a queue, or from all queues (`None`), on every node. Running jobs go on.
    pub async fn pause(&self, queue: Option<&str>) -> Result<(), Error> {
        queues::pause(&self.pool.get().await?, &self.actor, queue).await
    }

    /// Ends a pause of a queue, or of all queues (`None`). False: it was not paused.
    pub async fn resume(&self, queue: Option<&str>) -> Result<bool, Error> {
        queues::resume(&self.pool.get().await?, &self.actor, queue).await
    }

    /// Quiets, drains or resumes a worker; it learns of it with its next renewal. False: the worker is not running, or is
    /// already draining.
    pub async fn command_worker(&self, worker: i64, command: WorkerCommand) -> Result<bool, Error> {
        let connection = self.pool.get().await?;
        let commanded = workers::command_worker(&connection, &self.actor, worker, command).await?;
        if commanded {
            log_unhinted(hint::command(&connection).await);
        }
        Ok(commanded)
    }

    /// Redacts a kind, or reveals it. `docs/glossary.md` says what servers hide of a redacted kind, and from whom.
    pub async fn redact(&self, kind: &str, redacted: bool) -> Result<(), Error> {
        kinds::redact(&self.pool.get().await?, &self.actor, kind, redacted).await
    }

    /// Creates a token that is valid until `expires_at`, or until it is revoked. Returns its secret, which is not stored and
    /// cannot be shown again.
    pub async fn create_token(
        &self,
        name: &str,
        role: Role,
        expires_at: Option<SystemTime>,
    ) -> Result<(Token, String), Error> {
        tokens::create(&self.pool.get().await?, &self.actor, name, role, expires_at).await
    }

    /// Revokes a token: within two seconds servers refuse it and end its streams. False: there is no such token.
    pub async fn revoke_token(&self, name: &str) -> Result<bool, Error> {
        tokens::revoke(&self.pool.get().await?, &self.actor, name).await
    }

    /// The tokens that are not revoked, by name.
    pub async fn tokens(&self) -> Result<Vec<Token>, Error> {
        tokens::tokens(&self.pool.get().await?).await
    }

    /// The time by the database's clock, which decides what is due and what has expired.
    pub async fn now(&self) -> Result<SystemTime, Error> {
        let rows = query(&self.pool.get().await?, include_str!("../sql/engine/now.sql"), &[]).await?;
        rows.first().map(|row| row.get(0)).ok_or_else(|| Error::Invalid("the clock returned no row".into()))
    }

    /// One job, live or finished.
    pub async fn job(&self, id: i64) -> Result<JobDetail, Error> {
        jobs::job(&self.pool.get().await?, id).await
    }

    /// Jobs, newest first, one page at a time.
    pub async fn jobs(&self, filter: &Filter) -> Result<JobPage, Error> {
        jobs::jobs(&self.pool.get().await?, filter).await
    }

    /// The jobs with these ids; ids of jobs that do not exist are left out.
    pub async fn jobs_by_id(&self, ids: &[i64]) -> Result<Vec<JobSummary>, Error> {
        jobs::jobs_by_id(&self.pool.get().await?, ids).await
    }

    /// The current job of a lane: the one that was claimed last. `None`: none was claimed, or its history was pruned.
    pub async fn lane_current(&self, lane: &Lane) -> Result<Option<CurrentJob>, Error> {
        lane_views::current(&self.pool.get().await?, lane).await
    }

    /// The jobs of a lane, live and finished, newest first, one page at a time.
    pub async fn lane_jobs(&self, lane: &Lane, filter: &LaneFilter) -> Result<JobPage, Error> {
        lane_views::lane_jobs(&self.pool.get().await?, lane, filter).await
    }

    /// Every queue that has live jobs or was paused, and one named `*` while all queues are paused.
    pub async fn queues(&self) -> Result<Vec<QueueSummary>, Error> {
        queues::queues(&self.pool.get().await?).await
    }

    /// Workers, newest first, one page at a time: ids below `before`, at most `limit` (50 when it is 0). `dead` includes
    /// workers that ended within the last day.
    pub async fn workers(
        &self,
        before: Option<i64>,
        limit: usize,
        dead: bool,
    ) -> Result<Vec<WorkerSummary>, Error> {
        workers::workers(&self.pool.get().await?, before, limit, dead).await
    }

    /// Kinds that have settings, and those that running workers handle.
    pub async fn kinds(&self) -> Result<Vec<KindSummary>, Error> {
        kinds::kinds(&self.pool.get().await?).await
    }

    /// The audit log, newest first, one page at a time, as in [`Pitwheel::workers`].
    pub async fn audit(&self, before: Option<i64>, limit: usize) -> Result<Vec<AuditEntry>, Error> {
        audit::audit(&self.pool.get().await?, before, limit).await
    }

    /// Drops the history of jobs that finished longer ago than `keep`, whole days at a time, and creates the partitions of
    /// the coming days. Workers and servers do this every hour. Returns how many days were dropped.
    pub async fn prune_history(&self, keep: Duration) -> Result<i32, Error> {
        maintenance::prune(&self.pool.get().await?, keep).await
    }
}
