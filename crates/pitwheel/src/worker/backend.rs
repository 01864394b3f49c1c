//! How a handler reaches the engine: through the database, or through a server.

use std::collections::BTreeSet;

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
    /// Wakes idle workers for followers. A server does that itself.
    pub(crate) async fn hint_followers(&self, followers: impl Iterator<Item = &NewJob>) {
        match self {
            Backend::Database(pitwheel) => pitwheel.hint_followers(followers).await,
            #[cfg(feature = "remote")]
            Backend::Server(_) => {}
        }
    }

    /// Wakes idle workers of these queues. A server does that itself.
    pub(crate) async fn hint_due(&self, queues: &BTreeSet<String>) {
        match self {
            Backend::Database(pitwheel) => pitwheel.hint_due(queues).await,
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
