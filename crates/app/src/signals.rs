//! Ctrl-C and SIGTERM.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::output::print_message;

/// Cancels `stop` at Ctrl-C or SIGTERM; returns also when something else has cancelled it.
///
/// # Errors
/// If the process cannot listen to signals.
pub async fn stop_at_signal(stop: &CancellationToken) -> std::io::Result<()> {
    tokio::select! {
        signalled = signalled() => signalled?,
        () = stop.cancelled() => {}
    }
    print_message("stopping …");
    stop.cancel();
    Ok(())
}

/// Returns at Ctrl-C or SIGTERM.
pub(crate) async fn signalled() -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted,
        _ = terminate.recv() => Ok(()),
    }
}
