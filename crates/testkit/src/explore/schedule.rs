//! Runs one schedule: starts each session's next step in turn, and finds out which sessions wait for a lock.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures_util::future::join_all;
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::explore::connection::Connection;
use crate::explore::session::Session;

/// How often the server is asked for lock waits while a step has not ended.
const POLL: Duration = Duration::from_millis(1);
/// A session counts as blocked after this many equal polls in a row; a single poll may see it between two locks.
const POLLS_AGREE: usize = 3;
/// A step that neither ends nor waits for a lock for this long hangs.
const STEP_MAX: Duration = Duration::from_secs(20);

/// Process ids of the backends that wait for a lock, each with the backends it waits for.
type Waits = BTreeMap<i32, Vec<i32>>;

/// One turn of a schedule: the sessions that were ready, and the session and step that ran.
pub(crate) struct Turn {
    pub(crate) ready: Vec<usize>,
    pub(crate) session: usize,
    step: usize,
}

/// The sessions with their connections, used for one schedule after the other.
pub(crate) struct Scheduler<'a> {
    sessions: &'a [Session],
    connections: Vec<Connection>,
    pids: Vec<i32>,
    progress: RefCell<Vec<Progress>>,
    changed: Notify,
}

/// How far a session is in the current schedule.
#[derive(Default, Clone)]
struct Progress {
    next: usize,
    busy: bool,
    outputs: Vec<(usize, String)>,
}

impl<'a> Scheduler<'a> {
    pub(crate) async fn new(sessions: &'a [Session], connections: Vec<Connection>) -> Result<Scheduler<'a>> {
        let mut pids = Vec::new();
        for connection in &connections {
            let row = connection.client.query_one("select pg_backend_pid()", &[]).await?;
            pids.push(row.get(0));
        }
        Ok(Scheduler { sessions, connections, pids, progress: RefCell::default(), changed: Notify::new() })
    }

    /// Runs the sessions in the order of the prefix, then always the first session that is ready. `None`: a session of
    /// the prefix was not ready in its turn.
    pub(crate) async fn run(&mut self, monitor: &Client, prefix: &[usize]) -> Result<Option<Vec<Turn>>> {
        let mut connections = std::mem::take(&mut self.connections);
        let turns = self.run_on(&mut connections, monitor, prefix).await?;
        for connection in &mut connections {
            connection.claims.clear();
            connection.client.batch_execute("rollback").await?;
        }
        self.connections = connections;
        Ok(turns)
    }

    async fn run_on(
        &self,
        connections: &mut [Connection],
        monitor: &Client,
        prefix: &[usize],
    ) -> Result<Option<Vec<Turn>>> {
        self.progress.replace(vec![Progress::default(); self.sessions.len()]);
        let mut starts = Vec::new();
        let mut sessions = Vec::new();
        for (at, connection) in connections.iter_mut().enumerate() {
            let (start, started) = unbounded_channel();
            starts.push(start);
            sessions.push(self.take_steps(at, connection, started));
        }
        tokio::select! {
            turns = self.schedule(starts, monitor, prefix) => turns,
            _ = join_all(sessions) => bail!("all sessions ended before the schedule"),
        }
    }

    /// Takes a session's steps, each when its number comes through the channel.
    async fn take_steps(
        &self,
        session: usize,
        connection: &mut Connection,
        mut started: UnboundedReceiver<usize>,
    ) {
        while let Some(step) = started.recv().await {
            let result = self.sessions[session].steps[step].run(connection).await;
            let failed = result.is_err();
            let output = result.unwrap_or_else(|error| format!("error: {}", reason(&error)));
            if failed {
                // As a caller does: roll back and give up. A connection that cannot even do that shows in the next
                // step.
                let _ = connection.client.batch_execute("rollback").await;
            }
            let progress = &mut self.progress.borrow_mut()[session];
            progress.busy = false;
            if failed {
                progress.next = self.sessions[session].steps.len();
            }
            progress.outputs.push((step, output));
            self.changed.notify_one();
        }
    }

    async fn schedule(
        &self,
        starts: Vec<UnboundedSender<usize>>,
        monitor: &Client,
        prefix: &[usize],
    ) -> Result<Option<Vec<Turn>>> {
        let mut turns: Vec<Turn> = Vec::new();
        loop {
            if let Err(error) = self.wait_until_idle_or_blocked(monitor).await {
                return Err(error.context(format!("after {}", self.labels(&turns).join(" "))));
            }
            let ready = self.ready();
            let next = prefix.get(turns.len()).or(ready.first()).copied();
            let Some(session) = next else {
                return Ok(Some(turns));
            };
            if !ready.contains(&session) {
                self.cancel_statements(monitor).await?;
                return Ok(None);
            }
            let step = {
                let progress = &mut self.progress.borrow_mut()[session];
                progress.busy = true;
                progress.next += 1;
                progress.next - 1
            };
            starts[session].send(step).context("a session ended early")?;
            turns.push(Turn { ready, session, step });
        }
    }

    /// The sessions that can take a step: neither finished nor busy.
    fn ready(&self) -> Vec<usize> {
        let progress = self.progress.borrow();
        let is_ready = |&at: &usize| !progress[at].busy && progress[at].next < self.sessions[at].steps.len();
        (0..progress.len()).filter(is_ready).collect()
    }

    /// Waits until every session is idle, or waits for a lock that an idle one holds.
    async fn wait_until_idle_or_blocked(&self, monitor: &Client) -> Result<()> {
        let begun = Instant::now();
        let (mut agreed, mut before) = (0, Waits::new());
        loop {
            let busy = self.busy();
            if busy.is_empty() {
                return Ok(());
            }
            let waits = self.waits(monitor, &busy).await?;
            let blocked = busy.iter().all(|pid| waits.contains_key(pid)) && !is_deadlock(&waits);
            // If no session is ready, none can release a lock. Then only the server can go on: it ends a deadlock, or
            // grants the lock to the next backend.
            agreed = match blocked && !self.ready().is_empty() {
                true if waits == before => agreed + 1,
                true => 1,
                false => 0,
            };
            if agreed >= POLLS_AGREE && busy == self.busy() {
                return Ok(());
            }
            before = waits;
            if begun.elapsed() > STEP_MAX {
                bail!("a step hangs: neither done nor waiting for a lock of another session");
            }
            let _ = tokio::time::timeout(POLL, self.changed.notified()).await;
        }
    }

    fn busy(&self) -> Vec<i32> {
        let progress = self.progress.borrow();
        let busy = self.pids.iter().zip(progress.iter()).filter(|(_, session)| session.busy);
        busy.map(|(pid, _)| *pid).collect()
    }

    async fn waits(&self, monitor: &Client, busy: &[i32]) -> Result<Waits> {
        let sql = "select pid, array(select unnest(pg_blocking_pids(pid)) intersect select unnest($2))
            from unnest($1) as pid";
        let rows =
            monitor.query_typed(sql, &[(&busy, Type::INT4_ARRAY), (&self.pids, Type::INT4_ARRAY)]).await?;
        let waits = rows
            .iter()
            .map(|row| (row.get(0), row.get::<_, Vec<i32>>(1)))
            .filter(|(_, blockers)| !blockers.is_empty());
        Ok(waits.collect())
    }

    /// Cancels the statements of a schedule that is given up.
    async fn cancel_statements(&self, monitor: &Client) -> Result<()> {
        while !self.busy().is_empty() {
            let sql = "select pg_cancel_backend(pid) from unnest($1) as pid";
            monitor.query_typed(sql, &[(&self.busy(), Type::INT4_ARRAY)]).await?;
            let _ = tokio::time::timeout(POLL, self.changed.notified()).await;
        }
        Ok(())
    }

    /// The schedule as text: `session.label` for each turn.
    pub(crate) fn labels(&self, turns: &[Turn]) -> Vec<String> {
        turns.iter().map(|turn| self.label(turn.session, turn.step)).collect()
    }

    /// The outputs of all steps that ran, each under its label, session by session.
    pub(crate) fn outputs(&self) -> Vec<(String, String)> {
        let progress = self.progress.borrow();
        let outputs = progress.iter().enumerate().flat_map(|(at, session)| {
            session.outputs.iter().map(move |(step, output)| (self.label(at, *step), output.clone()))
        });
        outputs.collect()
    }

    fn label(&self, session: usize, step: usize) -> String {
        let session = &self.sessions[session];
        format!("{}.{}", session.name, session.steps[step].label)
    }
}

/// Whether some backends wait for each other; the server will end this with an error in one of them.
fn is_deadlock(waits: &Waits) -> bool {
    let waits_for_itself = |start: i32| {
        let (mut seen, mut ahead) = (Vec::new(), vec![start]);
        while let Some(pid) = ahead.pop() {
            for &next in waits.get(&pid).into_iter().flatten() {
                if next == start {
                    return true;
                }
                if !seen.contains(&next) {
                    seen.push(next);
                    ahead.push(next);
                }
            }
        }
        false
    };
    waits.keys().any(|&pid| waits_for_itself(pid))
}

/// The SQLSTATE if the server refused the statement, so that ends can be compared; otherwise the message.
fn reason(error: &anyhow::Error) -> String {
    let code = error.downcast_ref::<tokio_postgres::Error>().and_then(|error| error.code());
    code.map_or_else(|| format!("{error:#}"), |code| code.code().to_owned())
}
