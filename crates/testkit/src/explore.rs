//! The interleaving explorer: every feasible order of the statements of two or three sessions, on a real Postgres.
//!
//! A session is a list of steps: SQL text, or a call of the engine's own functions on the session's connection. A step that
//! waits for a lock keeps its session out of the schedule until it is released; a deadlock is waited out; an error rolls
//! the session back and drops its remaining steps. Every schedule starts from the same rows, and its end is described by
//! a query. So a race that needs one statement to fall between two others is found, not hoped for.

use std::pin::Pin;

use anyhow::{Context, Result, bail, ensure};

use crate::db::TestDb;
use crate::perform::Performance;
use crate::report::{Explored, Run};
use crate::stage::Stage;

/// More schedules than this take longer than a merge gate may: the sessions have too many steps.
const SCHEDULES_MAX: usize = 2000;
/// How often a schedule that came out differently than before is tried again; a machine under load may stall a backend.
const TRIES_MAX: usize = 3;

/// Empties the engine's tables. Deletes, because a truncate of all partitions costs more than a schedule.
const CLEAN: &str = "
    delete from pitwheel.job;
    delete from pitwheel.hold;
    delete from pitwheel.worker;
    delete from pitwheel.queue;
    delete from pitwheel.job_history;
    update pitwheel.sweep_tick set ticked_at = clock_timestamp() - interval '1 second';
    select setval('pitwheel.job_id_seq', 100);";

/// Every job and where it stands, as in `1 done | 2 running by 7 (dead) to cancel | 3 waiting`.
const JOBS: &str = "
    select coalesce(string_agg(one, ' | ' order by one), 'nothing')
    from (
        select job.id
            || coalesce(' running by ' || job.holder, ' waiting')
            || case when worker.dead_at is not null then ' (dead)' else '' end
            || case when job.cancel_requested_at is not null then ' to cancel' else '' end
        from pitwheel.job
        left join pitwheel.worker on worker.id = job.holder
        union all
        select id || ' ' || state from pitwheel.job_history
    ) as known(one)";

/// One session: a name and its steps.
#[must_use = "a session does nothing until it is explored"]
pub struct Session {
    pub(crate) name: &'static str,
    pub(crate) steps: Vec<Step>,
}

impl Session {
    /// Without steps yet.
    pub fn new(name: &'static str) -> Session {
        Session { name, steps: Vec::new() }
    }

    /// `begin`, one call, `commit`: so that what the call locks stays locked for a while.
    pub fn transaction<F>(name: &'static str, label: &'static str, call: F) -> Session
    where
        F: AsyncFn(&mut Stage) -> Result<String> + 'static,
    {
        Session::new(name).sql("begin").step(label, call).sql("commit")
    }

    /// Then this statement. Its label in a schedule is its first word.
    pub fn sql(self, sql: &'static str) -> Session {
        let label = sql.split_whitespace().next().unwrap_or_default();
        self.step(label, async move |stage| stage.ask(sql).await)
    }

    /// Then this statement, under a label.
    pub fn sql_as(self, label: &'static str, sql: impl Into<String>) -> Session {
        let sql = sql.into();
        self.step(label, async move |stage| stage.ask(&sql).await)
    }

    /// Then this call. What it says is part of the end; an error rolls the session back and ends it.
    pub fn step<F>(mut self, label: &'static str, call: F) -> Session
    where
        F: AsyncFn(&mut Stage) -> Result<String> + 'static,
    {
        self.steps.push(Step { label, call: Box::new(call) });
        self
    }
}

pub(crate) struct Step {
    pub(crate) label: &'static str,
    pub(crate) call: Box<dyn Call>,
}

/// An async closure with its type forgotten.
pub(crate) trait Call {
    fn call<'a>(&'a self, stage: &'a mut Stage) -> Pin<Box<dyn Future<Output = Result<String>> + 'a>>;
}

impl<F: AsyncFn(&mut Stage) -> Result<String>> Call for F {
    fn call<'a>(&'a self, stage: &'a mut Stage) -> Pin<Box<dyn Future<Output = Result<String>> + 'a>> {
        Box::pin(self(stage))
    }
}

/// What is explored: the rows at the start, the sessions, and how an end is described.
#[must_use = "nothing happens until it is explored"]
pub struct Explorer<'a> {
    db: &'a TestDb,
    title: &'static str,
    setup: String,
    sessions: Vec<Session>,
    afterwards: Vec<Step>,
    end: &'static str,
}

impl<'a> Explorer<'a> {
    /// Every schedule starts with the engine's tables empty, and its end tells where every job stands.
    pub fn new(db: &'a TestDb, title: &'static str) -> Explorer<'a> {
        Explorer::from_scratch(db, title).setup(CLEAN).end(JOBS)
    }

    /// For databases without the engine's tables: the setup undoes what the schedule before left.
    pub fn from_scratch(db: &'a TestDb, title: &'static str) -> Explorer<'a> {
        Explorer {
            db,
            title,
            setup: String::new(),
            sessions: Vec::new(),
            afterwards: Vec::new(),
            end: "select ''",
        }
    }

    /// More SQL to run before every schedule.
    pub fn setup(mut self, sql: &str) -> Explorer<'a> {
        self.setup = format!("{}{sql};", self.setup);
        self
    }

    /// A worker whose lease lasts.
    pub fn worker(self, id: i64) -> Explorer<'a> {
        self.leased(id, "1 hour")
    }

    /// A worker whose lease has run out, and that nobody has declared dead yet.
    pub fn expired(self, id: i64) -> Explorer<'a> {
        self.leased(id, "-1 second")
    }

    fn leased(self, id: i64, left: &str) -> Explorer<'a> {
        self.setup(&format!(
            "insert into pitwheel.worker (id, name, lease, lease_until) overriding system value
            values ({id}, 'worker {id}', '1 hour', clock_timestamp() + interval '{left}')"
        ))
    }

    /// A job that is due.
    pub fn waiting(self, id: i64) -> Explorer<'a> {
        self.setup(&format!(
            "insert into pitwheel.job (id, run_at, enqueued_at, max_attempts, priority, queue, kind, key, payload)
            values ({id}, clock_timestamp(), clock_timestamp(), 20, 0, 'default', 'test', 'key {id}', '{{}}')"
        ))
    }

    /// A job that this worker claimed, under fence 1.
    pub fn running(self, id: i64, worker: i64) -> Explorer<'a> {
        self.waiting(id).setup(&format!(
            "update pitwheel.job set holder = {worker}, fence = 1, attempt = 1, claimed_at = clock_timestamp()
                where id = {id};
            insert into pitwheel.hold (worker, job_ids) values ({worker}, array[{id}])"
        ))
    }

    /// One more session.
    pub fn session(mut self, session: Session) -> Explorer<'a> {
        self.sessions.push(session);
        self
    }

    /// Something to do when all sessions have ended, before the end is described. What it says is part of the end.
    pub fn afterwards<F>(mut self, label: &'static str, call: F) -> Explorer<'a>
    where
        F: AsyncFn(&mut Stage) -> Result<String> + 'static,
    {
        self.afterwards.push(Step { label, call: Box::new(call) });
        self
    }

    /// The query that describes an end.
    pub fn end(mut self, sql: &'static str) -> Explorer<'a> {
        self.end = sql;
        self
    }

    /// Runs every feasible schedule.
    pub async fn explore(self) -> Result<Explored> {
        let mut director = self.stage("director").await?;
        let mut stages = Vec::new();
        for session in &self.sessions {
            stages.push(self.stage(session.name).await?);
        }
        let mut performance = Performance::new(&self.sessions, stages).await?;
        let mut runs = Vec::new();
        let mut ahead = vec![Vec::new()];
        while let Some(prefix) = ahead.pop() {
            ensure!(
                runs.len() < SCHEDULES_MAX,
                "{}: more than {SCHEDULES_MAX} schedules, give the sessions fewer steps",
                self.title
            );
            let (played, run) = self.run(&mut director, &mut performance, &prefix).await?;
            runs.push(run);
            for depth in prefix.len()..played.len() {
                for &other in played[depth].open.iter().filter(|&&one| one > played[depth].pick) {
                    let mut next: Vec<usize> = played[..depth].iter().map(|turn| turn.pick).collect();
                    next.push(other);
                    ahead.push(next);
                }
            }
        }
        Ok(Explored::new(self.title, runs))
    }

    async fn stage(&self, name: &str) -> Result<Stage> {
        let client = self.db.client().await?;
        let settings = format!(
            "set deadlock_timeout = '20ms'; set synchronous_commit = off; set application_name = 'explore {name}'"
        );
        client
            .batch_execute(&settings)
            .await
            .context("the explorer needs a superuser, to find deadlocks quickly")?;
        Ok(Stage { client, claims: Vec::new(), ctid: None })
    }

    async fn run(
        &self,
        director: &mut Stage,
        performance: &mut Performance<'_>,
        prefix: &[usize],
    ) -> Result<(Vec<Turn>, Run)> {
        for _ in 0..TRIES_MAX {
            director.claims.clear();
            director.client.batch_execute(&self.setup).await?;
            let Some(played) = performance.play(&director.client, prefix).await? else {
                continue;
            };
            let mut said = performance.said();
            for step in &self.afterwards {
                said.push((step.label.to_owned(), step.call.call(director).await?));
            }
            let schedule = performance.labels(&played);
            let end = director.ask(self.end).await?;
            return Ok((played, Run::new(schedule, said, end)));
        }
        bail!(
            "{}: the schedule {prefix:?} was not feasible the second time: the steps are not deterministic",
            self.title
        )
    }
}

/// One turn of a schedule: who could go on, and who did.
pub(crate) struct Turn {
    pub(crate) open: Vec<usize>,
    pub(crate) pick: usize,
    pub(crate) step: usize,
}
