//! Watchers of jobs and queues. One loop of a node reads the database for all of them, and pauses while there are none.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pitwheel::{Error, Pitwheel, QUEUES_LISTED_MAX};
use tokio::sync::{Notify, mpsc};
use tokio::time::sleep;

use crate::auth::caller::Caller;
use crate::problem::Problem;
use crate::views::{JobLine, Queue};

/// Time between two reads.
const EVERY: Duration = Duration::from_millis(500);
/// The same if a stream was opened meanwhile, which waits for its first events. Without this, a client that opens one stream after the
/// other would make the loop read all the time.
const EVERY_OPENED: Duration = Duration::from_millis(100);
/// Watchers of a node at a time.
const WATCHERS_MAX: usize = 1000;
/// Watchers of a node with the same token: one program cannot keep all others out.
const TOKEN_WATCHERS_MAX: usize = 100;
/// Jobs that one watcher may watch. Its channel holds one change of each, and the end.
pub(crate) const JOBS_MAX: usize = 100;

/// Queues that are remembered for one watcher. More were sent only while producers invented names.
const SENT_QUEUES_MAX: usize = 2 * QUEUES_LISTED_MAX;

/// Something that changed.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    Job(JobLine),
    Queue(Queue),
    /// No job has this id.
    NotFound(i64),
    /// All watched jobs are finished, or do not exist.
    End,
}

#[derive(Default)]
pub(crate) struct Watch {
    watchers: Mutex<Vec<Watcher>>,
    added: Notify,
}

struct Watcher {
    /// The token that it was opened with; `None`: it needed none.
    token: Option<i64>,
    /// Whether key and note of redacted kinds are hidden from it.
    redact: bool,
    /// Empty: it watches the queues.
    jobs: Vec<i64>,
    changes: mpsc::Sender<Change>,
    /// What it was sent last, by job id.
    sent_jobs: HashMap<i64, JobLine>,
    /// What it was sent last, by name.
    sent_queues: HashMap<String, Queue>,
    /// Ids for which it was sent that they do not exist.
    not_found: HashSet<i64>,
}

impl Watch {
    fn watchers(&self) -> MutexGuard<'_, Vec<Watcher>> {
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The changes of these jobs, or of all queues if there are none. The current state comes first. The changes end when
    /// the caller's token is no longer valid.
    ///
    /// # Errors
    /// If this node has too many watchers, or too many with this token.
    pub(crate) fn open(&self, caller: &Caller, jobs: Vec<i64>) -> Result<mpsc::Receiver<Change>, Problem> {
        let (changes, receiver) = mpsc::channel(JOBS_MAX + 1);
        let mut watchers = self.watchers();
        watchers.retain(|watcher| !watcher.changes.is_closed());
        if watchers.len() >= WATCHERS_MAX {
            return Err(Problem::busy(
                "this node has too many event streams: use another node or retry later",
            ));
        }
        let token = caller.token();
        let of_token = watchers.iter().filter(|watcher| token.is_some() && watcher.token == token);
        if of_token.count() >= TOKEN_WATCHERS_MAX {
            return Err(Problem::busy(format!(
                "this token has {TOKEN_WATCHERS_MAX} event streams on this node: watch several jobs with one stream"
            )));
        }
        watchers.push(Watcher {
            token,
            redact: caller.needs_redaction(),
            jobs,
            changes,
            sent_jobs: HashMap::new(),
            sent_queues: HashMap::new(),
            not_found: HashSet::new(),
        });
        self.added.notify_one();
        Ok(receiver)
    }

    /// The number of watchers.
    pub(crate) fn len(&self) -> usize {
        self.watchers().iter().filter(|watcher| !watcher.changes.is_closed()).count()
    }

    /// The jobs that are watched, and whether the queues are. Waits while there are no watchers.
    async fn watched(&self) -> (HashSet<i64>, bool) {
        loop {
            let (jobs, queues) = {
                let mut watchers = self.watchers();
                watchers.retain(|watcher| !watcher.changes.is_closed());
                let jobs: HashSet<i64> = watchers.iter().flat_map(|watcher| &watcher.jobs).copied().collect();
                (jobs, watchers.iter().any(|watcher| watcher.jobs.is_empty()))
            };
            if queues || !jobs.is_empty() {
                return (jobs, queues);
            }
            self.added.notified().await;
        }
    }

    /// Waits between two reads: for less time if a stream was opened.
    async fn pause(&self) {
        sleep(EVERY_OPENED).await;
        tokio::select! {
            () = sleep(EVERY - EVERY_OPENED) => {}
            () = self.added.notified() => {}
        }
    }

    /// The tokens of all watchers.
    pub(crate) fn tokens(&self) -> HashSet<i64> {
        self.watchers().iter().filter_map(|watcher| watcher.token).collect()
    }

    /// Ends the streams of watchers with these tokens.
    pub(crate) fn close_tokens(&self, tokens: &HashSet<i64>) {
        self.watchers().retain(|watcher| watcher.token.is_none_or(|token| !tokens.contains(&token)));
    }

    /// Ends the streams of all watchers.
    pub(crate) fn close(&self) {
        self.watchers().clear();
    }
}

/// Reads what is watched and sends the changes. Never returns; safe to drop at any point.
pub(crate) async fn run(watch: Arc<Watch>, pitwheel: Pitwheel) {
    loop {
        let (jobs, queues) = watch.watched().await;
        if let Err(error) = read(&watch, &pitwheel, jobs, queues).await {
            tracing::warn!(%error, "cannot read what is watched, will retry");
        }
        watch.pause().await;
    }
}

async fn read(watch: &Watch, pitwheel: &Pitwheel, jobs: HashSet<i64>, queues: bool) -> Result<(), Error> {
    let ids: Vec<i64> = jobs.iter().copied().collect();
    let lines = if ids.is_empty() { Vec::new() } else { pitwheel.jobs_by_id(&ids).await? };
    // Each line as callers see it who may see all, and as those do who may not.
    let [shown, hidden] = [false, true].map(|redact| {
        let lines = lines.iter().cloned().map(|job| (job.id, JobLine::new(job, redact)));
        lines.collect::<HashMap<i64, JobLine>>()
    });
    let queues = if queues { pitwheel.queues().await? } else { Vec::new() };
    let queues: Vec<Queue> = queues.into_iter().map(Queue::from).collect();
    for watcher in watch.watchers().iter_mut() {
        // The jobs of a watcher that was added meanwhile were not read.
        if watcher.jobs.iter().all(|id| jobs.contains(id)) {
            watcher.send_changes(if watcher.redact { &hidden } else { &shown }, &queues);
        }
    }
    Ok(())
}

impl Watcher {
    /// Sends what changed. A change that finds the channel full is sent the next time.
    fn send_changes(&mut self, lines: &HashMap<i64, JobLine>, queues: &[Queue]) {
        if self.jobs.is_empty() {
            return self.send_queues(queues);
        }
        for id in &self.jobs {
            let line = lines.get(id);
            let is_known = match line {
                Some(line) => self.sent_jobs.get(id) == Some(line),
                None => self.not_found.contains(id),
            };
            let change = line.map_or(Change::NotFound(*id), |line| Change::Job(line.clone()));
            if is_known || self.changes.try_send(change).is_err() {
                continue;
            }
            match line {
                Some(line) => drop(self.sent_jobs.insert(*id, line.clone())),
                None => drop(self.not_found.insert(*id)),
            }
        }
        let is_over = |id: &i64| {
            self.not_found.contains(id) || self.sent_jobs.get(id).is_some_and(JobLine::is_finished)
        };
        if self.jobs.iter().all(is_over) {
            let _ = self.changes.try_send(Change::End);
        }
    }

    /// Sends the queues that changed. One that is not listed any more has no jobs and was never paused; it is sent so, and forgotten.
    /// Unless the list is cut: then nothing is known of it.
    fn send_queues(&mut self, queues: &[Queue]) {
        let listed: HashSet<&str> = queues.iter().map(|queue| queue.name.as_str()).collect();
        let is_cut = queues.len() >= QUEUES_LISTED_MAX;
        let is_room = self.sent_queues.len() < SENT_QUEUES_MAX;
        let changes = &self.changes;
        self.sent_queues.retain(|name, _| match listed.contains(name.as_str()) {
            false if is_cut => is_room,
            false => changes.try_send(Change::Queue(Queue::empty(name))).is_err(),
            true => true,
        });
        for queue in queues {
            if self.sent_queues.get(&queue.name) != Some(queue)
                && self.changes.try_send(Change::Queue(queue.clone())).is_ok()
            {
                self.sent_queues.insert(queue.name.clone(), queue.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn streams_that_are_opened_again_and_again_cause_few_reads() {
        let (watch, reads) = (Watch::default(), Cell::new(0));
        // 200 within a second, each for as long as a client needs to give up.
        let opening = async {
            for id in 0..200 {
                let changes = watch.open(&Caller::loopback(), vec![id]).expect("there is room");
                sleep(Duration::from_millis(5)).await;
                drop(changes);
            }
        };
        let reading = async {
            loop {
                watch.watched().await;
                reads.set(reads.get() + 1);
                watch.pause().await;
            }
        };
        tokio::select! {
            () = reading => {}
            () = opening => {}
        }
        assert!((2..=11).contains(&reads.get()), "{} reads", reads.get());
    }
}
