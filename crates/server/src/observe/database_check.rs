//! Whether the database can be used, for probes. They need no token, so however many ask, the database is asked once a second.

use std::time::{Duration, Instant};

use pitwheel::{DatabaseError, Error, Pitwheel};
use tokio::sync::Mutex;

use crate::problem::Problem;

/// How long an answer counts.
const ANSWER_AGE_MAX: Duration = Duration::from_secs(1);
/// How long the database has for an answer to a probe. Load balancers and scrapers wait for a few seconds more.
pub(crate) const PROBE_MAX: Duration = Duration::from_secs(2);

/// The last answer.
pub(crate) struct DatabaseCheck {
    /// With connections of its own.
    probes: Pitwheel,
    last: Mutex<Option<(Instant, Result<(), Problem>)>>,
}

impl DatabaseCheck {
    pub(crate) fn new(probes: Pitwheel) -> DatabaseCheck {
        DatabaseCheck { probes, last: Mutex::default() }
    }

    /// The database answers, and its schema fits this version.
    pub(crate) async fn result(&self) -> Result<(), Problem> {
        // Held while the database is asked, so that others wait for the same answer.
        let mut last = self.last.lock().await;
        if let Some((answered_at, answer)) = &*last
            && answered_at.elapsed() < ANSWER_AGE_MAX
        {
            return answer.clone();
        }
        let answer = tokio::time::timeout(PROBE_MAX, self.probes.check_schema()).await;
        let answer = answer.unwrap_or_else(|_| Err(no_answer())).map_err(Problem::from);
        *last = Some((Instant::now(), answer.clone()));
        answer
    }
}

/// The database is silent: it is stopped, or cannot be reached.
pub(crate) fn no_answer() -> Error {
    Error::Database(DatabaseError::Unreachable(format!("no answer for {PROBE_MAX:?}")))
}
