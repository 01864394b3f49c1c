//! Who watches what: one sampler of a node for all watchers, and nothing to do while there are none.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pitwheel::{Error, Pitwheel};
use tokio::sync::{Notify, mpsc};

use crate::views::{JobLine, Queue};

/// How often watched things are looked at.
const EVERY: Duration = Duration::from_millis(500);
/// Watchers of a node at a time.
const WATCHERS_MAX: usize = 1000;
/// Jobs of one watcher, and news that it may have before it.
pub(crate) const JOBS_MAX: usize = 100;

/// Something that changed.
#[derive(Debug, Clone)]
pub(crate) enum News {
    Job(JobLine),
    Queue(Queue),
    /// A job that is not there.
    NoJob(i64),
    /// All watched jobs are finished.
    End,
}

#[derive(Default)]
pub(crate) struct Watch {
    watchers: Mutex<Vec<Watcher>>,
    came: Notify,
}

struct Watcher {
    /// Empty: the queues.
    jobs: Vec<i64>,
    news: mpsc::Sender<News>,
    seen_jobs: HashMap<i64, JobLine>,
    seen_queues: HashMap<String, Queue>,
    missing: HashSet<i64>,
}

impl Watch {
    fn watchers(&self) -> MutexGuard<'_, Vec<Watcher>> {
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// News of these jobs, or of all queues, from now on, beginning with how they stand. `None`: too many watch already.
    pub(crate) fn open(&self, jobs: Vec<i64>) -> Option<mpsc::Receiver<News>> {
        let (news, receiver) = mpsc::channel(JOBS_MAX + 1);
        let mut watchers = self.watchers();
        watchers.retain(|watcher| !watcher.news.is_closed());
        if watchers.len() >= WATCHERS_MAX {
            return None;
        }
        watchers.push(Watcher {
            jobs,
            news,
            seen_jobs: HashMap::new(),
            seen_queues: HashMap::new(),
            missing: HashSet::new(),
        });
        self.came.notify_one();
        Some(receiver)
    }

    pub(crate) fn len(&self) -> usize {
        self.watchers().iter().filter(|watcher| !watcher.news.is_closed()).count()
    }

    /// Ends all.
    pub(crate) fn close(&self) {
        self.watchers().clear();
    }
}

/// Looks at what is watched until the node ends.
pub(crate) async fn run(watch: Arc<Watch>, pitwheel: Pitwheel) {
    loop {
        let (jobs, queues) = {
            let mut watchers = watch.watchers();
            watchers.retain(|watcher| !watcher.news.is_closed());
            let jobs: HashSet<i64> = watchers.iter().flat_map(|watcher| &watcher.jobs).copied().collect();
            (jobs, watchers.iter().any(|watcher| watcher.jobs.is_empty()))
        };
        if jobs.is_empty() && !queues {
            watch.came.notified().await;
            continue;
        }
        if let Err(error) = look(&watch, &pitwheel, jobs, queues).await {
            tracing::warn!(%error, "cannot look at what is watched, will try again");
        }
        tokio::select! {
            () = tokio::time::sleep(EVERY) => {}
            () = watch.came.notified() => {}
        }
    }
}

async fn look(watch: &Watch, pitwheel: &Pitwheel, jobs: HashSet<i64>, queues: bool) -> Result<(), Error> {
    let ids: Vec<i64> = jobs.iter().copied().collect();
    let lines = if ids.is_empty() { Vec::new() } else { pitwheel.jobs_by_id(&ids).await? };
    let lines: HashMap<i64, JobLine> = lines.into_iter().map(|job| (job.id, JobLine::from(job))).collect();
    let queues = if queues { pitwheel.queues().await? } else { Vec::new() };
    let queues: Vec<Queue> = queues.into_iter().map(Queue::from).collect();
    for watcher in watch.watchers().iter_mut() {
        // One that came meanwhile was not asked about yet.
        if watcher.jobs.iter().all(|id| jobs.contains(id)) {
            watcher.tell(&lines, &queues);
        }
    }
    Ok(())
}

impl Watcher {
    /// Sends what is new. What finds no room is new the next time, too.
    fn tell(&mut self, lines: &HashMap<i64, JobLine>, queues: &[Queue]) {
        for id in &self.jobs {
            let line = lines.get(id);
            let known = match line {
                Some(line) => self.seen_jobs.get(id) == Some(line),
                None => self.missing.contains(id),
            };
            let news = line.map_or(News::NoJob(*id), |line| News::Job(line.clone()));
            if known || self.news.try_send(news).is_err() {
                continue;
            }
            match line {
                Some(line) => drop(self.seen_jobs.insert(*id, line.clone())),
                None => drop(self.missing.insert(*id)),
            }
        }
        if self.jobs.is_empty() {
            for queue in queues {
                if self.seen_queues.get(&queue.name) != Some(queue)
                    && self.news.try_send(News::Queue(queue.clone())).is_ok()
                {
                    self.seen_queues.insert(queue.name.clone(), queue.clone());
                }
            }
            return;
        }
        let over =
            |id: &i64| self.missing.contains(id) || self.seen_jobs.get(id).is_some_and(JobLine::is_finished);
        if self.jobs.iter().all(over) {
            let _ = self.news.try_send(News::End);
        }
    }
}
