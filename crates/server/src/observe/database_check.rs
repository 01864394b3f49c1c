//! Whether the database can be used, for probes. They need no token, so however many ask, the database is asked once a second.

use std::time::{Duration, Instant};

use pitwheel::Pitwheel;
use tokio::sync::Mutex;

use crate::problem::Problem;

/// How long an answer counts.
const ANSWER_AGE_MAX: Duration = Duration::from_secs(1);

/// The last answer.
pub(crate) struct DatabaseCheck {
    pitwheel: Pitwheel,
    last: Mutex<Option<(Instant, Result<(), Problem>)>>,
}

impl DatabaseCheck {
    pub(crate) fn new(pitwheel: Pitwheel) -> DatabaseCheck {
        DatabaseCheck { pitwheel, last: Mutex::default() }
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
        let answer = self.pitwheel.check_schema().await.map_err(Problem::from);
        *last = Some((Instant::now(), answer.clone()));
        answer
    }
}
