//! What the loops of a remote worker share.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pitwheel_proto::v1;
use pitwheel_proto::v1::worker_service_client::WorkerServiceClient;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use crate::engine::batcher::{Batcher, Linger, Weight};
use crate::error::Error;
use crate::job::claim::Claim;
use crate::job::limits::SETTLE_MAX;
use crate::worker::alive::Alive;
use crate::worker::backend::Backend;
use crate::worker::context::Context;
use crate::worker::handler::Handlers;
use crate::worker::later::Later;
use crate::worker::remote::message::{claim_of, result_bytes};
use crate::worker::remote::server::{Address, Client, Server};
use crate::worker::stats::Counters;

/// A report with fewer results waits a moment for more.
const REPORT_ENOUGH: usize = 100;
/// A result with this many bytes counts as one more, so that a report has at most 2 MB, unless one result has more.
const BYTES_PER_RESULT: usize = 2 * 1024;
/// How long a call may take before it is given up and repeated.
const CALL_MAX: Duration = Duration::from_secs(30);

/// A random name that all streams of this process have, whichever worker opened them, and those of no other.
pub(super) static PROCESS: LazyLock<String> =
    LazyLock::new(|| format!("{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..)));

pub(crate) struct Remote {
    server: Server,
    pub(super) backend: Arc<Backend>,
    pub(super) name: String,
    pub(super) handlers: Handlers,
    /// Ends when the worker must open no more streams: it shuts down, or is drained.
    pub(super) stop: CancellationToken,
    state: Mutex<State>,
    /// Results that wait to be reported. Bounded by the slots.
    pub(super) results: Batcher<v1::Result>,
    /// Some results were reported.
    pub(super) reported: Notify,
    /// A stream was opened, and the interval of heartbeats is known.
    pub(super) welcomed: Notify,
    /// Ends when nothing more will be reported.
    pub(super) closed: CancellationToken,
    pub(super) counters: Counters,
}

#[derive(Default)]
pub(super) struct State {
    /// Open streams.
    pub(super) open: HashMap<i64, OpenStream>,
    /// Streams that ended while some of their jobs were not reported yet.
    pub(super) ended: HashSet<i64>,
    /// Jobs that run, or whose result was not answered yet.
    pub(super) held: HashMap<Claim, Held>,
    /// Results of jobs that were locked, and those that take the place of refused ones, to be reported later.
    pub(super) later: Later<v1::Result>,
    pub(super) heartbeat_every: Option<Duration>,
    /// Why the worker cannot go on.
    pub(super) problem: Option<Error>,
}

pub(super) struct OpenStream {
    /// Ends the stream here.
    pub(super) declared_dead: CancellationToken,
    pub(super) alive: Alive,
}

pub(super) struct Held {
    /// The stream it came from.
    pub(super) worker: i64,
    pub(super) context: Context,
    pub(super) task: AbortHandle,
    /// Its result waits to be reported, or was reported.
    pub(super) ended: bool,
}

impl Remote {
    pub(crate) fn new(address: &Address, name: String, handlers: Handlers) -> Remote {
        let server = Server::at(address);
        Remote {
            backend: Arc::new(Backend::Server(server.clone())),
            server,
            name,
            handlers,
            stop: CancellationToken::new(),
            state: Mutex::default(),
            results: Batcher::new(
                |result| Weight { weight: 1 + result_bytes(result) / BYTES_PER_RESULT, hurries: false },
                REPORT_ENOUGH,
                SETTLE_MAX,
                Linger::Turn,
            ),
            reported: Notify::new(),
            welcomed: Notify::new(),
            closed: CancellationToken::new(),
            counters: Counters::default(),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn client(&self) -> WorkerServiceClient<Client> {
        self.server.workers()
    }

    /// Asks handlers to stop, because a cancel was requested.
    pub(super) fn cancel(&self, claims: &[v1::Claim]) {
        let state = self.state();
        for claim in claims.iter().map(claim_of) {
            // Not looked up, because an older server does not name the holder.
            let cancelled = state.held.iter().filter(|(held, _)| claim.is_of(**held));
            cancelled.for_each(|(_, held)| held.context.cancel(true));
        }
    }
}

pub(super) fn with_deadline<T>(message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(CALL_MAX);
    request
}
