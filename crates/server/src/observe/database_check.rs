//! Whether the database can be used, for probes. They need no token, so however many ask, the database is asked once a second.

use std::time::Duration;

use pitwheel::{DatabaseError, Error, Pitwheel};

use crate::observe::shared::Shared;
use crate::problem::Problem;

/// How long the database has for an answer to a probe. Load balancers and scrapers wait for a few seconds more.
pub(crate) const PROBE_MAX: Duration = Duration::from_secs(2);

/// The last answer.
pub(crate) struct DatabaseCheck {
    /// With a connection of its own.
    probes: Pitwheel,
    last: Shared<Result<(), Problem>>,
}

impl DatabaseCheck {
    pub(crate) fn new(probes: Pitwheel) -> DatabaseCheck {
        DatabaseCheck { probes, last: Shared::default() }
    }

    /// The database answers, and its schema fits this version.
    pub(crate) async fn result(&self) -> Result<(), Problem> {
        let ask = async {
            let answer = tokio::time::timeout(PROBE_MAX, self.probes.check_schema()).await;
            answer.unwrap_or_else(|_| Err(no_answer())).map_err(Problem::from)
        };
        self.last.get(ask).await
    }
}

/// The database is silent: it is stopped, or cannot be reached.
pub(crate) fn no_answer() -> Error {
    Error::Database(DatabaseError::Unreachable(format!("no answer for {PROBE_MAX:?}")))
}
