//! What is explored: the rows at the start, the sessions, and how the end of a schedule is described.

use anyhow::{Context, Result, bail, ensure};

use crate::explore::connection::Connection;
use crate::explore::report::{Explored, Run};
use crate::explore::schedule::{Scheduler, Turn};
use crate::explore::session::{Session, Step};
use crate::test_db::TestDb;

/// More schedules than this take longer than a merge gate may: the sessions have too many steps.
const SCHEDULES_MAX: usize = 2000;
/// How often a schedule is tried that turns out not to be feasible again. A busy machine may delay a backend so long
/// that a step counts as blocked although it is not.
const TRIES_MAX: usize = 3;

/// Empties the engine's tables. Deletes, because a truncate of all partitions costs more than a schedule.
const CLEAN: &str = "
    delete from pitwheel.job;
    delete from pitwheel.hold;
    delete from pitwheel.worker;
    delete from pitwheel.queue;
    delete from pitwheel.job_history;
    delete from pitwheel.recurring;
    delete from pitwheel.lane;
    delete from pitwheel.lane_check;
    update pitwheel.sweep_tick set ticked_at = clock_timestamp() - interval '1 second';
    select setval('pitwheel.job_id_seq', 100);";

/// Every job and its state, as in `1 done | 2 running by 7 (dead) to cancel | 3 waiting | 4 blocked`.
const JOBS: &str = "
    select coalesce(string_agg(one, ' | ' order by one), 'nothing')
    from (
        select job.id
            || coalesce(' running by ' || job.holder, case when job.run_at = 'infinity' then ' blocked' else ' waiting' end)
            || case when worker.dead_at is not null then ' (dead)' else '' end
            || case when job.cancel_requested_at is not null then ' to cancel' else '' end
        from pitwheel.job
        left join pitwheel.worker on worker.id = job.holder
        union all
        select id || ' ' || state from pitwheel.job_history
    ) as known(one)";

/// What is explored: the rows at the start, the sessions, and how the end of a schedule is described.
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
    /// Every schedule starts with the engine's tables empty, and its end lists every job with its state.
    pub fn new(db: &'a TestDb, title: &'static str) -> Explorer<'a> {
        Explorer::from_scratch(db, title).setup(CLEAN).end(JOBS)
    }

    /// For databases without the engine's tables: the setup has to undo what the previous schedule left.
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

    /// Adds SQL to run before every schedule.
    pub fn setup(mut self, sql: &str) -> Explorer<'a> {
        self.setup = format!("{}{sql};", self.setup);
        self
    }

    /// Adds a worker with a lease of an hour.
    pub fn worker(self, id: i64) -> Explorer<'a> {
        self.worker_with_lease(id, "1 hour")
    }

    /// Adds a worker whose lease has expired and that no sweep has declared dead yet.
    pub fn expired(self, id: i64) -> Explorer<'a> {
        self.worker_with_lease(id, "-1 second")
    }

    fn worker_with_lease(self, id: i64, left: &str) -> Explorer<'a> {
        self.setup(&format!(
            "insert into pitwheel.worker (id, name, lease, lease_until) overriding system value
            values ({id}, 'worker {id}', '1 hour', clock_timestamp() + interval '{left}')"
        ))
    }

    /// Adds a job that is due.
    pub fn waiting(self, id: i64) -> Explorer<'a> {
        self.setup(&format!(
            "insert into pitwheel.job (id, run_at, enqueued_at, max_attempts, priority, queue, kind, key, payload)
            values ({id}, clock_timestamp(), clock_timestamp(), 20, 0, 'default', 'test', 'key {id}', '{{}}')"
        ))
    }

    /// Adds a job that this worker claimed, under fence 1.
    pub fn running(self, id: i64, worker: i64) -> Explorer<'a> {
        self.waiting(id).claimed(id, worker)
    }

    /// Adds a job of a lane, given as JSON text: its head, if it is the first.
    pub fn in_lane(self, id: i64, lane: &str) -> Explorer<'a> {
        self.setup(&format!(
            "insert into pitwheel.job (id, run_at, enqueued_at, max_attempts, priority, queue, kind, payload, lane)
            values ({id}, clock_timestamp(), clock_timestamp(), 20, 0, 'default', 'test', '{{}}', '{lane}');
            select from pitwheel.promote_checked('0', 100)"
        ))
    }

    /// Lets this worker claim the job, under fence 1.
    pub fn claimed(self, id: i64, worker: i64) -> Explorer<'a> {
        self.setup(&format!(
            "update pitwheel.job set holder = {worker}, fence = 1, attempt = 1, claimed_at = clock_timestamp()
                where id = {id};
            insert into pitwheel.hold (worker, job_ids) values ({worker}, array[{id}])"
        ))
    }

    /// Adds a session.
    pub fn session(mut self, session: Session) -> Explorer<'a> {
        self.sessions.push(session);
        self
    }

    /// Adds a call to make after all sessions have ended and before the end is described. The text it returns is part
    /// of the run.
    pub fn afterwards<F>(mut self, label: &'static str, call: F) -> Explorer<'a>
    where
        F: AsyncFn(&mut Connection) -> Result<String> + 'static,
    {
        self.afterwards.push(Step::new(label, call));
        self
    }

    /// Sets the query that describes an end.
    pub fn end(mut self, sql: &'static str) -> Explorer<'a> {
        self.end = sql;
        self
    }

    /// Runs every feasible schedule.
    pub async fn explore(self) -> Result<Explored> {
        let mut monitor = self.connect("monitor").await?;
        let mut connections = Vec::new();
        for session in &self.sessions {
            connections.push(self.connect(session.name).await?);
        }
        let mut scheduler = Scheduler::new(&self.sessions, connections).await?;
        let mut runs = Vec::new();
        let mut unexplored = vec![Vec::new()];
        while let Some(prefix) = unexplored.pop() {
            ensure!(
                runs.len() < SCHEDULES_MAX,
                "{}: more than {SCHEDULES_MAX} schedules, give the sessions fewer steps",
                self.title
            );
            let (turns, run) = self.run(&mut monitor, &mut scheduler, &prefix).await?;
            runs.push(run);
            for depth in prefix.len()..turns.len() {
                for &other in turns[depth].ready.iter().filter(|&&one| one > turns[depth].session) {
                    let mut next: Vec<usize> = turns[..depth].iter().map(|turn| turn.session).collect();
                    next.push(other);
                    unexplored.push(next);
                }
            }
        }
        Ok(Explored::new(self.title, runs))
    }

    async fn connect(&self, name: &str) -> Result<Connection> {
        let client = self.db.client().await?;
        let settings = format!(
            "set deadlock_timeout = '20ms'; set synchronous_commit = off; set application_name = 'explore {name}'"
        );
        client
            .batch_execute(&settings)
            .await
            .context("the explorer needs a superuser, to find deadlocks quickly")?;
        Ok(Connection { client, claims: Vec::new(), ctid: None })
    }

    /// Runs the one schedule that begins with this prefix and continues with the first session that is ready.
    async fn run(
        &self,
        monitor: &mut Connection,
        scheduler: &mut Scheduler<'_>,
        prefix: &[usize],
    ) -> Result<(Vec<Turn>, Run)> {
        for _ in 0..TRIES_MAX {
            monitor.claims.clear();
            monitor.client.batch_execute(&self.setup).await?;
            let Some(turns) = scheduler.run(&monitor.client, prefix).await? else {
                continue;
            };
            let mut outputs = scheduler.outputs();
            for step in &self.afterwards {
                outputs.push((step.label.to_owned(), step.run(monitor).await?));
            }
            let schedule = scheduler.labels(&turns);
            let end = monitor.query(self.end).await?;
            return Ok((turns, Run::new(schedule, outputs, end)));
        }
        bail!(
            "{}: the schedule {prefix:?} was not feasible the second time: the steps are not deterministic",
            self.title
        )
    }
}
