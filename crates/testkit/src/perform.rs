//! One schedule: tells sessions when to take their next step, and knows which of them wait for a lock.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures_util::future::join_all;
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::explore::{Session, Turn};
use crate::stage::Stage;

/// How often the server is asked who waits for whom while a step has not ended.
const POLL: Duration = Duration::from_millis(1);
/// A session counts as blocked when so many polls in a row say so; one may catch it between two locks.
const POLLS_AGREE: usize = 3;
/// A step that neither ends nor waits for a lock for so long hangs.
const STEP_MAX: Duration = Duration::from_secs(20);

/// Who waits for a lock, and for which of the others, by process id.
type Waits = BTreeMap<i32, Vec<i32>>;

/// The sessions with their connections, used for one schedule after the other.
pub(crate) struct Performance<'a> {
    sessions: &'a [Session],
    stages: Vec<Stage>,
    pids: Vec<i32>,
    seats: RefCell<Vec<Seat>>,
    changed: Notify,
}

/// Where a session stands in the schedule under way.
#[derive(Default, Clone)]
struct Seat {
    next: usize,
    busy: bool,
    said: Vec<(usize, String)>,
}

impl<'a> Performance<'a> {
    pub(crate) async fn new(sessions: &'a [Session], stages: Vec<Stage>) -> Result<Performance<'a>> {
        let mut pids = Vec::new();
        for stage in &stages {
            let row = stage.client.query_one("select pg_backend_pid()", &[]).await?;
            pids.push(row.get(0));
        }
        Ok(Performance { sessions, stages, pids, seats: RefCell::default(), changed: Notify::new() })
    }

    /// Plays the picks of the prefix, then always the first session that can go on. `None`: a pick of the prefix was not
    /// open this time.
    pub(crate) async fn play(&mut self, monitor: &Client, prefix: &[usize]) -> Result<Option<Vec<Turn>>> {
        let mut stages = std::mem::take(&mut self.stages);
        let played = self.play_on(&mut stages, monitor, prefix).await?;
        for stage in &mut stages {
            stage.claims.clear();
            stage.client.batch_execute("rollback").await?;
        }
        self.stages = stages;
        Ok(played)
    }

    async fn play_on(
        &self,
        stages: &mut [Stage],
        monitor: &Client,
        prefix: &[usize],
    ) -> Result<Option<Vec<Turn>>> {
        self.seats.replace(vec![Seat::default(); self.sessions.len()]);
        let mut cues = Vec::new();
        let mut players = Vec::new();
        for (at, stage) in stages.iter_mut().enumerate() {
            let (cue, heard) = unbounded_channel();
            cues.push(cue);
            players.push(self.perform(at, stage, heard));
        }
        tokio::select! {
            played = self.direct(cues, monitor, prefix) => played,
            _ = join_all(players) => bail!("all sessions ended before their director"),
        }
    }

    /// Takes a session's steps as they are called.
    async fn perform(&self, at: usize, stage: &mut Stage, mut heard: UnboundedReceiver<usize>) {
        while let Some(step) = heard.recv().await {
            let answer = self.sessions[at].steps[step].call.call(stage).await;
            let failed = answer.is_err();
            let said = answer.unwrap_or_else(|error| format!("error: {}", reason(&error)));
            if failed {
                // What a caller does: roll back and give up. A connection that cannot even do that shows in the next step.
                let _ = stage.client.batch_execute("rollback").await;
            }
            let seat = &mut self.seats.borrow_mut()[at];
            seat.busy = false;
            if failed {
                seat.next = self.sessions[at].steps.len();
            }
            seat.said.push((step, said));
            self.changed.notify_one();
        }
    }

    async fn direct(
        &self,
        cues: Vec<UnboundedSender<usize>>,
        monitor: &Client,
        prefix: &[usize],
    ) -> Result<Option<Vec<Turn>>> {
        let mut played: Vec<Turn> = Vec::new();
        loop {
            if let Err(error) = self.come_to_rest(monitor).await {
                return Err(error.context(format!("after {}", self.labels(&played).join(" "))));
            }
            let open = self.open();
            let pick = prefix.get(played.len()).or(open.first()).copied();
            let Some(pick) = pick else {
                return Ok(Some(played));
            };
            if !open.contains(&pick) {
                self.let_go(monitor).await?;
                return Ok(None);
            }
            let step = {
                let seat = &mut self.seats.borrow_mut()[pick];
                seat.busy = true;
                seat.next += 1;
                seat.next - 1
            };
            cues[pick].send(step).context("a session ended early")?;
            played.push(Turn { open, pick, step });
        }
    }

    /// The sessions that can take a step: neither through nor busy.
    fn open(&self) -> Vec<usize> {
        let seats = self.seats.borrow();
        let can = |&at: &usize| !seats[at].busy && seats[at].next < self.sessions[at].steps.len();
        (0..seats.len()).filter(can).collect()
    }

    /// Waits until every session is idle, or waits for a lock that an idle one holds.
    async fn come_to_rest(&self, monitor: &Client) -> Result<()> {
        let begun = Instant::now();
        let (mut agreed, mut before) = (0, Waits::new());
        loop {
            let busy = self.busy();
            if busy.is_empty() {
                return Ok(());
            }
            let waits = self.waits(monitor, &busy).await?;
            let blocked = busy.iter().all(|pid| waits.contains_key(pid)) && !in_a_circle(&waits);
            // With nobody left to release a lock it is the server's turn: it ends a circle, or lets the next one in.
            agreed = match blocked && !self.open().is_empty() {
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
        let seats = self.seats.borrow();
        let busy = self.pids.iter().zip(seats.iter()).filter(|(_, seat)| seat.busy);
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

    /// Ends the statements of a schedule that is given up.
    async fn let_go(&self, monitor: &Client) -> Result<()> {
        while !self.busy().is_empty() {
            let sql = "select pg_cancel_backend(pid) from unnest($1) as pid";
            monitor.query_typed(sql, &[(&self.busy(), Type::INT4_ARRAY)]).await?;
            let _ = tokio::time::timeout(POLL, self.changed.notified()).await;
        }
        Ok(())
    }

    /// The schedule in words: `session.label`.
    pub(crate) fn labels(&self, played: &[Turn]) -> Vec<String> {
        played.iter().map(|turn| self.label(turn.pick, turn.step)).collect()
    }

    /// What the steps said that said something, by label, session after session.
    pub(crate) fn said(&self) -> Vec<(String, String)> {
        let seats = self.seats.borrow();
        let said = seats.iter().enumerate().flat_map(|(at, seat)| {
            seat.said.iter().map(move |(step, said)| (self.label(at, *step), said.clone()))
        });
        said.collect()
    }

    fn label(&self, session: usize, step: usize) -> String {
        let session = &self.sessions[session];
        format!("{}.{}", session.name, session.steps[step].label)
    }
}

/// Whether some wait for each other, which the server will end with an error in one of them.
fn in_a_circle(waits: &Waits) -> bool {
    let returns = |start: i32| {
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
    waits.keys().any(|&pid| returns(pid))
}

/// The SQLSTATE if the server refused, so that ends can be compared; the words otherwise.
fn reason(error: &anyhow::Error) -> String {
    let code = error.downcast_ref::<tokio_postgres::Error>().and_then(|error| error.code());
    code.map_or_else(|| format!("{error:#}"), |code| code.code().to_owned())
}
