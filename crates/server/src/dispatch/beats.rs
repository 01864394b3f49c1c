//! Heartbeats: many workers' leases moved on by one statement.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use pitwheel::Claim;
use pitwheel::engine::{Ending, Settlement, heartbeat, held, retire};
use tokio::sync::{mpsc, oneshot};

use crate::dispatch::node::Node;
use crate::dispatch::reports::Refusal;

/// How long a heartbeat may wait for others. Far below the time after which a worker would miss it.
const LINGER: Duration = Duration::from_millis(500);
const LINGER_PARTS: u32 = 10;

/// A worker's heartbeat, and who waits for its answer.
pub(crate) struct HeartbeatReply {
    workers: Vec<i64>,
    answer: oneshot::Sender<Result<Answer, Refusal>>,
}

/// What a worker is told.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) cancelled: Vec<Claim>,
    pub(crate) dead: Vec<i64>,
    pub(crate) draining: Vec<i64>,
}

/// The way in.
pub(crate) struct Beats {
    sender: mpsc::UnboundedSender<HeartbeatReply>,
}

impl Beats {
    pub(crate) fn new() -> (Beats, mpsc::UnboundedReceiver<HeartbeatReply>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Beats { sender }, receiver)
    }

    /// Moves these leases on, together with those of others.
    pub(crate) async fn beat(&self, workers: Vec<i64>) -> Result<Answer, Refusal> {
        let (answer, answered) = oneshot::channel();
        let sent = self.sender.send(HeartbeatReply { workers, answer });
        sent.map_err(|_| Refusal::Ending)?;
        answered.await.unwrap_or(Err(Refusal::Ending))
    }
}

/// Moves leases on until the node ends.
pub(crate) async fn run(node: Arc<Node>, mut queue: mpsc::UnboundedReceiver<HeartbeatReply>) {
    let linger = LINGER.min(node.heartbeat_every() / LINGER_PARTS);
    while let Some(first) = queue.recv().await {
        tokio::time::sleep(linger).await;
        let mut beats = vec![first];
        while let Ok(beat) = queue.try_recv() {
            beats.push(beat);
        }
        answer(&node, beats).await;
    }
}

async fn answer(node: &Node, beats: Vec<HeartbeatReply>) {
    let mut workers: Vec<i64> = beats.iter().flat_map(|beat| &beat.workers).copied().collect();
    workers.sort_unstable();
    workers.dedup();
    match node.pool.run(async |client| heartbeat(&*client, &workers).await).await {
        Err(error) => {
            let refusal = Refusal::from(error);
            beats.into_iter().for_each(|beat| {
                let _ = beat.answer.send(Err(refusal.clone()));
            });
        }
        Ok(renewed) => {
            let alive: HashSet<i64> = renewed.alive.into_iter().collect();
            node.heard(&workers, &alive);
            let draining: HashSet<i64> = renewed.draining.into_iter().collect();
            let mut cancelled: HashMap<i64, Vec<Claim>> = HashMap::new();
            for (worker, claim) in renewed.cancelled {
                cancelled.entry(worker).or_default().push(claim);
            }
            for beat in beats {
                let theirs = beat.workers.iter().filter_map(|worker| cancelled.get(worker));
                let those = |which: &dyn Fn(&i64) -> bool| {
                    beat.workers.iter().filter(|worker| which(worker)).copied().collect()
                };
                let answer = Answer {
                    cancelled: theirs.flatten().copied().collect(),
                    dead: those(&|worker| !alive.contains(worker)),
                    draining: those(&|worker| draining.contains(worker)),
                };
                let _ = beat.answer.send(Ok(answer));
            }
        }
    }
}

/// A stream ended, and its worker says what it still runs: what was on its way to it is given back, and if nothing is left
/// it is no worker any more.
pub(crate) async fn ended(node: &Arc<Node>, worker: i64, holding: &[Claim]) -> Result<(), Refusal> {
    let holds = node.pool.run(async |client| held(&*client, &[worker]).await).await?;
    let holding: HashSet<&Claim> = holding.iter().collect();
    let unheard: Vec<Settlement> = holds
        .iter()
        .flat_map(|hold| &hold.claims)
        .filter(|claim| !holding.contains(claim))
        .map(|claim| Settlement { claim: *claim, ending: Ending::released() })
        .collect();
    if !unheard.is_empty() {
        node.reports.settle(unheard).await?;
    }
    if holding.is_empty() {
        node.pool.run(async |client| retire(&client, worker).await).await?;
    }
    Ok(())
}
