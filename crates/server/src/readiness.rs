//! Whether a server is ready for traffic, and whether it accepts connections.

use std::sync::Arc;

use tokio::sync::watch;

/// Tells a server whether the application is ready, and the application whether the server accepts connections.
///
/// Clones share the same state. Use one for each server.
///
/// `/readyz` answers 200 if the application is ready and the database can be used, and 503 otherwise. All other routes are
/// served in any case: readiness is advice to load balancers and to `kubectl`.
#[derive(Debug, Clone)]
pub struct Readiness {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// Why the application is not ready; `None`: it is ready.
    not_ready: watch::Sender<Option<String>>,
    server: watch::Sender<Phase>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Starting,
    Accepting,
    Ended,
}

/// The server ended, or failed to start, before it accepted connections. [`Server::run`](crate::Server::run) returns why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the server ended before it accepted connections")]
pub struct NotServing;

/// Ready at once.
impl Default for Readiness {
    fn default() -> Readiness {
        Readiness::with(None)
    }
}

impl Readiness {
    fn with(not_ready: Option<String>) -> Readiness {
        let (not_ready, server) = (watch::Sender::new(not_ready), watch::Sender::new(Phase::Starting));
        Readiness { shared: Arc::new(Shared { not_ready, server }) }
    }

    /// Not ready until [`Readiness::set_ready`].
    pub fn starting() -> Readiness {
        Readiness::with(Some("the application is starting".to_owned()))
    }

    /// The application is ready: `/readyz` answers 200, as long as the database can be used.
    pub fn set_ready(&self) {
        self.shared.not_ready.send_replace(None);
    }

    /// The application is not ready: `/readyz` answers 503 with this reason.
    pub fn set_not_ready(&self, reason: impl Into<String>) {
        self.shared.not_ready.send_replace(Some(reason.into()));
    }

    /// Waits until the server accepts connections. Safe to cancel.
    ///
    /// # Errors
    /// If the server ends, or fails to start, before that.
    pub async fn accepting(&self) -> Result<(), NotServing> {
        let mut phase = self.shared.server.subscribe();
        match phase.wait_for(|phase| *phase != Phase::Starting).await.as_deref() {
            Ok(Phase::Accepting) => Ok(()),
            _ => Err(NotServing),
        }
    }

    /// Why the application is not ready; `None`: it is ready.
    pub(crate) fn reason(&self) -> Option<String> {
        self.shared.not_ready.borrow().clone()
    }

    pub(crate) fn set_accepting(&self) {
        self.shared.server.send_replace(Phase::Accepting);
    }

    /// Marks the server as ended when the guard is dropped.
    pub(crate) fn end_on_drop(&self) -> EndGuard {
        EndGuard(self.clone())
    }
}

pub(crate) struct EndGuard(Readiness);

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.0.shared.server.send_replace(Phase::Ended);
    }
}
