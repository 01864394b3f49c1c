//! Tasks that run beside the connections of a server, and end with it.

use std::future::Future;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The tasks of a server. They end with it, also when it fails.
#[derive(Default)]
pub(crate) struct Background {
    tasks: Tasks,
}

/// Spawns tasks that belong to a [`Background`].
#[derive(Clone, Default)]
pub(crate) struct Tasks {
    tracker: TaskTracker,
    end: CancellationToken,
}

impl Drop for Background {
    fn drop(&mut self) {
        self.tasks.end.cancel();
    }
}

impl Background {
    pub(crate) fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// Ends what still runs, and waits for it.
    pub(crate) async fn end(&self) {
        self.tasks.end.cancel();
        self.tasks.tracker.close();
        self.tasks.tracker.wait().await;
    }
}

impl Tasks {
    /// Runs a task until it has ended, or the server ends: then its result is `None`. It goes on when the handle is dropped.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<Option<T>> {
        self.tracker.spawn(self.end.clone().run_until_cancelled_owned(task))
    }

    /// For tasks that end by themselves.
    pub(crate) fn tracker(&self) -> &TaskTracker {
        &self.tracker
    }
}
