//! What the claim loop claims for: the slots of one worker, or the streams of a server.

use std::collections::BTreeSet;
use std::future::Future;
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::engine::claim::ClaimedJobs;
use crate::engine::cursor::Bounds;
use crate::error::Error;
use crate::job::claim::{Claimed, QueueSlots};
use crate::postgres::Pool;

/// What the loop claims for: the slots of one worker, or the streams of a server.
pub trait ClaimSink: Sync {
    /// The name for logs.
    fn name(&self) -> &str;
    /// The connections for claims.
    fn pool(&self) -> &Pool;
    /// The queues to claim from.
    fn queues(&self) -> &[String];
    /// The kinds to claim.
    fn kinds(&self) -> &[String];
    /// Ends when no more must be claimed.
    fn stop(&self) -> &CancellationToken;
    /// Notified when something may be due.
    fn due(&self) -> &Notify;
    /// Notified when slots may be free again.
    fn freed(&self) -> &Notify;
    /// Reserves room for one claim, in all queues or in some; empty when there is none. Queues take turns at being first.
    fn reserve(&self, only: Option<&BTreeSet<String>>) -> Reserved;
    /// Claims for the reserved slots. When `given_up` says why, the connection is closed, so that the server ends the statement.
    fn claim(
        &self,
        room: &Reserved,
        bounds: &Bounds,
        given_up: impl Future<Output = Error> + Send,
    ) -> impl Future<Output = Result<ClaimedJobs, Error>> + Send;
    /// Frees the reserved slots that the claim did not fill.
    fn unreserve(&self, room: &Reserved, claimed: &[Claimed]);
    /// Starts the claimed jobs.
    fn start(&self, jobs: Vec<Claimed>);
    /// Releases jobs that are held without being known, because the result of a claim was lost. Nothing is claimed meanwhile, so it is
    /// given up after `limit`.
    fn release_unknown(&self, limit: Duration) -> impl Future<Output = Result<usize, Error>> + Send;
    /// Whether it runs suspects at all.
    fn takes_suspects(&self) -> bool {
        true
    }
    /// Reserves a worker that runs nothing, to run a suspect alone; it gets no other job until the suspect has ended.
    fn alone(&self) -> Option<i64>;
    /// Starts a suspect on the worker that [`ClaimSink::alone`] returned; without a suspect, that worker goes on as before.
    fn start_alone(&self, worker: i64, suspect: Option<Claimed>);
    /// A look back found no suspect: workers need not wait to be free for one.
    fn no_suspect(&self) {}
    /// The number of claimers on this node, this one included. While idle they share the polls of one.
    fn claimers_on_node(&self) -> u32 {
        1
    }
    /// The id under which this claimer takes its turn at running a suspect alone.
    fn turn_holder(&self) -> i64 {
        0
    }
    /// The next time at which a run of a recurring job is due, as far as it is known here.
    fn next_run_time(&self) -> Option<Instant> {
        None
    }
    /// Whether such a time has come since the last call.
    fn run_time_has_come(&self) -> bool {
        false
    }
    /// How long to claim nothing, at first, so that a worker becomes free to run a suspect alone.
    fn alone_wait(&self) -> Duration;
}

/// Slots reserved for one claim.
#[derive(Debug, Default)]
pub struct Reserved {
    /// The slots of each queue, in the order of the claim.
    pub slots_by_queue: Vec<QueueSlots>,
    /// The worker of each slot, one entry per slot; empty where all slots belong to one worker.
    pub slots_by_worker: Vec<i64>,
    /// The number of slots.
    pub total: usize,
}
