//! How a handler reaches the engine: through the database, or through a server.

use crate::client::Pitwheel;
use crate::engine::enqueue::Enqueued;
use crate::error::Error;
use crate::job::new_job::NewJob;
#[cfg(feature = "remote")]
use crate::worker::remote::server::Server;

pub(crate) enum Backend {
    Database(Pitwheel),
    #[cfg(feature = "remote")]
    Server(Server),
}

impl Backend {
    /// Wakes idle workers of these queues. A hint that fails delays a job until the next poll, no more.
    pub(crate) async fn hint(&self, queues: &[&str]) {
        match self {
            Backend::Database(pitwheel) => {
                for queue in queues {
                    if let Err(error) = pitwheel.hint(queue).await {
                        tracing::debug!(%error, queue, "a wake-up hint was not sent");
                    }
                }
            }
            #[cfg(feature = "remote")]
            Backend::Server(_) => {}
        }
    }

    pub(crate) async fn enqueue(&self, jobs: Vec<NewJob>) -> Result<Vec<Enqueued>, Error> {
        match self {
            Backend::Database(pitwheel) => pitwheel.enqueue_many(jobs).await,
            #[cfg(feature = "remote")]
            Backend::Server(server) => server.enqueue(jobs).await,
        }
    }
}
