//! A thread with a runtime of its own, for what handlers must not delay: they may block all threads of the runtime that they run on.

use std::future::Future;
use std::panic::resume_unwind;
use std::sync::mpsc;
use std::thread;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::error::Error;

/// The thread. It ends soon after this is dropped.
pub(super) struct OwnThread {
    runtime: Handle,
    _end: DropGuard,
}

impl OwnThread {
    /// # Errors
    /// The system has no thread or no file descriptor left.
    pub(super) fn start(name: &str) -> Result<OwnThread, Error> {
        let failed = |error| Error::Invalid(format!("cannot start the thread that renews leases: {error}"));
        let (give, given) = mpsc::channel::<Runtime>();
        let end = CancellationToken::new();
        let ended = end.clone();
        let until_the_end = move || {
            let Ok(runtime) = given.recv() else { return };
            runtime.block_on(ended.cancelled());
            // Drops its tasks and connections. It does not wait for the lookup of a host name, which may take long.
            runtime.shutdown_background();
        };
        thread::Builder::new().name(name.to_owned()).spawn(until_the_end).map_err(failed)?;
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let handle = runtime.handle().clone();
        let _ = give.send(runtime);
        Ok(OwnThread { runtime: handle, _end: end.drop_guard() })
    }

    /// Runs a future on the thread, which ends with it. If the call is dropped, so is the future. A panic in it is passed on to the caller.
    pub(super) async fn run(self, future: impl Future<Output = ()> + Send + 'static) {
        if let Err(panicked) = self.runtime.spawn(future).await {
            resume_unwind(panicked.into_panic());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use anyhow::Result;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_future_whose_caller_is_dropped_is_dropped() -> Result<()> {
        let (running, dropped) = oneshot::channel::<()>();
        let (started, has_started) = oneshot::channel();
        let future = async move {
            let _running = running;
            let _ = started.send(());
            pending().await
        };
        let caller = tokio::spawn(OwnThread::start("test")?.run(future));
        has_started.await?;
        caller.abort();
        assert!(dropped.await.is_err(), "it ends without a message");
        Ok(())
    }

    #[tokio::test]
    async fn a_panic_is_passed_on_to_the_caller() -> Result<()> {
        let caller = tokio::spawn(OwnThread::start("test")?.run(async { panic!("in the test") }));
        assert!(caller.await.is_err_and(|error| error.is_panic()));
        Ok(())
    }

    #[tokio::test]
    async fn a_blocked_caller_does_not_delay_it() -> Result<()> {
        let (go, gone) = oneshot::channel();
        let (answer, answered) = mpsc::channel();
        let future = async move {
            let _ = gone.await;
            let _ = answer.send(thread::current().name().map(str::to_owned));
        };
        let caller = tokio::spawn(OwnThread::start("test")?.run(future));
        tokio::task::yield_now().await;
        let _ = go.send(());
        // The only thread of this runtime is blocked.
        assert_eq!(answered.recv()?.as_deref(), Some("test"));
        Ok(caller.await?)
    }
}
