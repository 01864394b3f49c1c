//! A value that is read once a second, however many ask for it.

use std::future::Future;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;

/// How long a value counts.
const AGE_MAX: Duration = Duration::from_secs(1);

/// The last value that was read.
pub(crate) struct Shared<T> {
    last: Mutex<Option<(Instant, T)>>,
}

impl<T> Default for Shared<T> {
    fn default() -> Shared<T> {
        Shared { last: Mutex::default() }
    }
}

impl<T: Clone> Shared<T> {
    /// The last value, which is read if it is too old. Safe to cancel: then the next caller reads it.
    pub(crate) async fn get(&self, read: impl Future<Output = T>) -> T {
        // Held while the value is read, so that others wait for the same one.
        let mut last = self.last.lock().await;
        if let Some((read_at, value)) = &*last
            && read_at.elapsed() < AGE_MAX
        {
            return value.clone();
        }
        let value = read.await;
        *last = Some((Instant::now(), value.clone()));
        value
    }
}
