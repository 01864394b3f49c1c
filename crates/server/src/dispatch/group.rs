//! Streams that take the same kinds from the same queues: one claimer feeds them all.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pitwheel::Error;
use pitwheel::engine::{
    Bounds, ClaimSink, Claimed, Pool, Reserved, claim_for_workers, release_unknown, run_claimer,
};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::dispatch::node::Node;

pub(crate) struct Group {
    pub(crate) queues: Vec<String>,
    kinds: Vec<String>,
    pub(crate) due: Notify,
    pub(crate) freed: Notify,
    /// Ends when the last stream is gone.
    pub(crate) stop: CancellationToken,
    turn: AtomicUsize,
}

impl Group {
    pub(crate) fn new(queues: Vec<String>, kinds: Vec<String>) -> Group {
        Group {
            queues,
            kinds,
            due: Notify::new(),
            freed: Notify::new(),
            stop: CancellationToken::new(),
            turn: AtomicUsize::new(0),
        }
    }

    pub(crate) fn takes(&self, queues: &[String], kinds: &[String]) -> bool {
        self.queues == queues && self.kinds == kinds
    }
}

/// Claims for a group until its last stream is gone.
pub(crate) async fn run(node: Arc<Node>, group: Arc<Group>) {
    run_claimer(&Feed { node, group }).await;
}

/// The streams of a group, as those who take what is claimed.
struct Feed {
    node: Arc<Node>,
    group: Arc<Group>,
}

impl ClaimSink for Feed {
    fn name(&self) -> &str {
        self.node.name()
    }

    fn pool(&self) -> &Pool {
        &self.node.pool
    }

    fn queues(&self) -> &[String] {
        &self.group.queues
    }

    fn kinds(&self) -> &[String] {
        &self.group.kinds
    }

    fn stop(&self) -> &CancellationToken {
        &self.group.stop
    }

    fn due(&self) -> &Notify {
        &self.group.due
    }

    fn freed(&self) -> &Notify {
        &self.group.freed
    }

    fn reserve(&self) -> Reserved {
        let turn = self.group.turn.fetch_add(1, Ordering::Relaxed);
        self.node.streams().reserve(&self.group, turn)
    }

    async fn claim(&self, room: &Reserved, bounds: &Bounds) -> Result<Vec<Claimed>, Error> {
        let queues: Vec<String> = room.slots_by_queue.iter().map(|ask| ask.queue.clone()).collect();
        let dealt = self.node.pool.run(async |client| {
            claim_for_workers(&*client, &room.slots_by_worker, &queues, &self.group.kinds, bounds).await
        });
        dealt.await
    }

    fn unreserve(&self, room: &Reserved, claimed: &[Claimed]) {
        self.node.streams().unreserve(&room.slots_by_worker, claimed);
    }

    fn start(&self, jobs: Vec<Claimed>) {
        let unsent = self.node.streams().send(jobs);
        self.node.release(unsent);
    }

    async fn release_unknown(&self) -> Result<usize, Error> {
        let known = self.node.streams().known_holds(&self.group);
        let mut released = 0;
        for (worker, holds) in known {
            let release = async |client: Arc<_>| release_unknown(&*client, worker, &holds).await;
            released += self.node.pool.run(release).await?;
        }
        Ok(released)
    }

    fn alone(&self) -> Option<i64> {
        self.node.streams().alone(&self.group)
    }

    fn start_alone(&self, worker: i64, suspect: Option<Claimed>) {
        let unsent = self.node.streams().send_alone(worker, suspect);
        self.node.release(unsent);
    }

    fn claimers_on_node(&self) -> u32 {
        u32::try_from(self.node.streams().groups()).unwrap_or(u32::MAX)
    }

    /// Only the stream that is let run empty waits; the others go on.
    fn alone_wait(&self) -> Duration {
        Duration::ZERO
    }
}
