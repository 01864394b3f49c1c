//! The loops that renew the lease, pass cancels on, and write progress.
//!
//! The lease is renewed on a thread of its own. Handlers may block all threads of the runtime that they run on, and with them every timer
//! and every connection that was made there.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use crate::client::Pitwheel;
use crate::engine::lease::{Renewed, cancel_requests, progress, register, renew};
use crate::engine::maintenance::{RENEWALS, lease_limit};
use crate::engine::retry::RetryDelay;
use crate::error::Error;
use crate::job::claim::Claim;
use crate::postgres::{Pool, Session};
use crate::worker::core::Core;
use crate::worker::own_thread::OwnThread;
use crate::worker::settler::delete_emptied;

/// How often progress is written.
const PROGRESS: Duration = Duration::from_secs(1);

/// A renewal needs one connection at a time.
const CONNECTIONS: usize = 1;

/// The renewals of a worker.
pub(super) struct Renewals {
    thread: OwnThread,
    /// Used on the thread only: the task of a connection runs where the connection was made.
    pool: Pool,
}

impl Renewals {
    /// # Errors
    /// The system has no thread left.
    pub(super) fn start(pitwheel: &Pitwheel, lease: Duration) -> Result<Renewals, Error> {
        let thread = OwnThread::start("pitwheel-lease")?;
        Ok(Renewals { thread, pool: pitwheel.pool_for_loops(CONNECTIONS, lease_limit(lease))? })
    }

    /// The pool, for another one to share with.
    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Renews until the last ending is written. A renewal that is in progress then is given up.
    pub(super) async fn run(self, core: Arc<Core>, ended: CancellationToken) {
        let Renewals { thread, pool } = self;
        let renewing = async move {
            ended.run_until_cancelled(keep_renewing(&core, &pool, &ended)).await;
        };
        thread.run(renewing).await;
    }
}

async fn keep_renewing(core: &Core, pool: &Pool, ended: &CancellationToken) {
    let every = core.registration.lease / RENEWALS;
    let mut retry_delay = RetryDelay::default();
    loop {
        match heartbeat(core, pool).await {
            Ok(()) => retry_delay.reset(),
            Err(error) => {
                tracing::warn!(%error, worker = core.name(), "cannot renew the lease, will try again");
                // After an outage the lease may have little more left than this.
                let _ = tokio::time::timeout(every, retry_delay.wait(ended)).await;
                continue;
            }
        }
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            () = core.cancel.notified() => {}
        }
    }
}

/// Writes progress, about once a second, deletes the empty holds that no settle deleted, and releases jobs that were claimed too
/// far ahead. Apart from the renewals, which must not wait for it.
pub(super) async fn report_progress(core: &Core, ended: &CancellationToken) {
    while !ended.is_cancelled() {
        core.release_late();
        if let Err(error) = write_progress(core).await {
            tracing::warn!(%error, worker = core.name(), "cannot write progress");
        }
        tokio::select! {
            () = tokio::time::sleep(PROGRESS) => {}
            () = ended.cancelled() => {}
        }
    }
}

async fn write_progress(core: &Core) -> Result<(), Error> {
    let reports = take_progress(core);
    if !reports.is_empty() {
        core.pool.run(async |client| progress(&client, &reports).await).await?;
    }
    delete_emptied(core).await
}

/// What handlers have reported since the last call, in the order of ids. A handler that settles its job itself writes that, too.
fn take_progress(core: &Core) -> Vec<(Claim, f32, String)> {
    let slots = core.slots();
    let running = slots.running.iter().filter(|(_, running)| !running.context.was_settled_by_handler());
    let reports = running.filter_map(|(claim, running)| {
        running.context.last_progress().take().map(|(fraction, note)| (*claim, fraction, note))
    });
    let mut reports: Vec<(Claim, f32, String)> = reports.collect();
    reports.sort_unstable_by_key(|(claim, ..)| claim.id);
    reports
}

async fn heartbeat(core: &Core, pool: &Pool) -> Result<(), Error> {
    let (id, sent) = (core.id(), Instant::now());
    let renewing = async |client: Arc<Session>| renew(&client, id).await;
    let renewed = pool.run_or_borrow(&core.pool, renewing).await?;
    if renewed != Renewed::Dead {
        core.alive().proved(sent);
    }
    match renewed {
        Renewed::Alive => {}
        Renewed::Drain => core.stop.cancel(),
        Renewed::Dead => {
            let registering = async |client: Arc<Session>| register(&client, &core.registration).await;
            let id = pool.run_or_borrow(&core.pool, registering).await?;
            tracing::warn!(
                worker = core.name(),
                "declared dead while alive: its jobs are given to others, and it goes on under a new id"
            );
            core.reregistered(id);
            core.alive().proved(sent);
        }
    }
    let id = core.id();
    let reading = async |client: Arc<Session>| cancel_requests(&client, &[id]).await;
    let requests = pool.run_or_borrow(&core.pool, reading).await?;
    let claims: Vec<Claim> = requests.into_iter().map(|(_, claim)| claim).collect();
    core.request_cancel(&claims);
    Ok(())
}
