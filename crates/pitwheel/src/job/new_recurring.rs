//! A recurring job as its author defines it.

use std::time::{Duration, SystemTime};

use serde::Serialize;

use crate::error::Error;
use crate::job::cadence::Cadence;
use crate::job::misfire::Misfire;
use crate::job::new_job::{Job, NewJob};

/// A recurring job to create: the job that each run is, a key, and a cadence.
///
/// ```
/// # use pitwheel::{Job, NewRecurring};
/// # #[derive(serde::Serialize, serde::Deserialize)] struct Report { tenant: u64 }
/// # impl Job for Report { const KIND: &str = "report"; }
/// let nightly = NewRecurring::of(&Report { tenant: 7 }, "tenant-7", "cron 30 2 * * * Europe/Zurich".parse()?).priority(5);
/// # Ok::<(), pitwheel::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "a new recurring job does nothing until it is created"]
pub struct NewRecurring {
    pub(crate) job: NewJob,
    pub(crate) key: String,
    pub(crate) cadence: Cadence,
    pub(crate) misfire: Misfire,
    /// Of one run; `None`: without limit.
    pub(crate) max_attempts: Option<u32>,
    pub(crate) first_at: Option<SystemTime>,
}

impl NewRecurring {
    /// Runs jobs like this one, with the defaults of its type. A failed run is retried without a limit of attempts.
    pub fn of<J: Job>(job: &J, key: impl Into<String>, cadence: Cadence) -> NewRecurring {
        NewRecurring::new(NewJob::of(job), key.into(), cadence)
    }

    /// Runs jobs of any kind, from JSON text.
    pub fn raw(
        kind: impl Into<String>,
        json: impl Into<String>,
        key: impl Into<String>,
        cadence: Cadence,
    ) -> NewRecurring {
        NewRecurring::new(NewJob::raw(kind, json), key.into(), cadence)
    }

    fn new(job: NewJob, key: String, cadence: Cadence) -> NewRecurring {
        NewRecurring { job, key, cadence, misfire: Misfire::default(), max_attempts: None, first_at: None }
    }

    /// The queue that its runs wait in.
    pub fn queue(mut self, queue: impl Into<String>) -> NewRecurring {
        self.job = self.job.queue(queue);
        self
    }

    /// The priority of its runs: -9 to 9, higher first within the queue.
    pub fn priority(mut self, priority: i16) -> NewRecurring {
        self.job = self.job.priority(priority);
        self
    }

    /// How long one attempt may take.
    pub fn timeout(mut self, timeout: Duration) -> NewRecurring {
        self.job = self.job.timeout(timeout);
        self
    }

    /// Data about its runs that is not their payload.
    pub fn metadata(mut self, metadata: &impl Serialize) -> NewRecurring {
        self.job = self.job.metadata(metadata);
        self
    }

    /// The metadata, from JSON text.
    pub fn metadata_raw(mut self, json: impl Into<String>) -> NewRecurring {
        self.job = self.job.metadata_raw(json);
        self
    }

    /// The maximum number of attempts of one run, after which it is buried and the next run follows: 1 to 1000.
    pub fn max_attempts(mut self, max_attempts: u32) -> NewRecurring {
        self.max_attempts = Some(max_attempts);
        self
    }

    /// What becomes of planned times at which it could not run.
    pub fn misfire(mut self, misfire: Misfire) -> NewRecurring {
        self.misfire = misfire;
        self
    }

    /// The time of its first run. Otherwise `every` and `adaptive` begin at once, and `cron` at its next time.
    pub fn first_at(mut self, first_at: SystemTime) -> NewRecurring {
        self.first_at = Some(first_at);
        self
    }

    /// Refuses what the database cannot store or a reader cannot parse.
    pub fn check(&self) -> Result<(), Error> {
        let job = NewJob {
            key: Some(self.key.clone()),
            max_attempts: self.max_attempts.unwrap_or(1),
            run_at: self.first_at,
            ..self.job.clone()
        };
        job.check()
    }
}
