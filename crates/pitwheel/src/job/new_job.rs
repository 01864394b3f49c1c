//! A job as its author defines it: a serde type with a kind, and the options of one job.

use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::Error;
use crate::job::lane::Lane;
use crate::job::limits::SPAN_MAX;
use crate::job::payload::{self, PayloadError};
use crate::job::trace::TraceContext;

/// A unit of work: its payload is the value itself, as JSON.
///
/// The constants are the defaults of every job of the kind; [`NewJob`] overrides them for one.
pub trait Job: Serialize + DeserializeOwned + Send + 'static {
    /// The stable name that selects the handler. Renaming the type does not change it.
    const KIND: &'static str;
    /// The queue it waits in.
    const QUEUE: &'static str = "default";
    /// -9 to 9, higher first within a queue.
    const PRIORITY: i16 = 0;
    /// The maximum number of attempts, after which it is buried.
    const MAX_ATTEMPTS: u32 = 20;
    /// How long one attempt may take. `None`: without limit.
    const TIMEOUT: Option<Duration> = None;
    /// Which of its endings are kept in the history.
    const HISTORY: History = History::All;
}

/// Which endings of a kind's jobs are kept in the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum History {
    /// Done, dead and cancelled.
    All,
    /// Dead and cancelled only: cheaper for kinds that succeed by the million.
    FailuresOnly,
}

/// A job to enqueue, with its options.
///
/// ```
/// # use pitwheel::{Job, NewJob};
/// # #[derive(serde::Serialize, serde::Deserialize)] struct Invoice { number: u64 }
/// # impl Job for Invoice { const KIND: &str = "invoice"; }
/// let job = NewJob::of(&Invoice { number: 7 }).key("invoice-7").priority(5).delay(std::time::Duration::from_secs(60));
/// ```
#[derive(Debug, Clone)]
#[must_use = "a new job does nothing until it is enqueued"]
pub struct NewJob {
    pub(crate) kind: String,
    pub(crate) payload: Result<String, PayloadError>,
    pub(crate) metadata: Option<Result<String, PayloadError>>,
    pub(crate) queue: String,
    pub(crate) run_at: Option<SystemTime>,
    pub(crate) delay: Duration,
    pub(crate) priority: i16,
    pub(crate) max_attempts: u32,
    pub(crate) timeout: Option<Duration>,
    pub(crate) key: Option<String>,
    pub(crate) lane: Option<Lane>,
    pub(crate) lane_pass: bool,
}

impl NewJob {
    /// A job with the defaults of its type, due now.
    pub fn of<J: Job>(job: &J) -> NewJob {
        NewJob {
            payload: to_json(job),
            queue: J::QUEUE.to_owned(),
            priority: J::PRIORITY,
            max_attempts: J::MAX_ATTEMPTS,
            timeout: J::TIMEOUT,
            ..NewJob::raw(J::KIND, String::new())
        }
    }

    /// A job of any kind, from JSON text, due now.
    pub fn raw(kind: impl Into<String>, json: impl Into<String>) -> NewJob {
        NewJob {
            kind: kind.into(),
            payload: Ok(json.into()),
            metadata: None,
            queue: "default".to_owned(),
            run_at: None,
            delay: Duration::ZERO,
            priority: 0,
            max_attempts: 20,
            timeout: None,
            key: None,
            lane: None,
            lane_pass: false,
        }
    }

    /// The queue it waits in.
    pub fn queue(mut self, queue: impl Into<String>) -> NewJob {
        self.queue = queue.into();
        self
    }

    /// Runs not before this time. A time in the past means now.
    pub fn run_at(mut self, run_at: SystemTime) -> NewJob {
        self.run_at = Some(run_at);
        self
    }

    /// Runs not before this much later, by the database's clock.
    pub fn delay(mut self, delay: Duration) -> NewJob {
        self.delay = delay;
        self
    }

    /// -9 to 9, higher first within the queue.
    pub fn priority(mut self, priority: i16) -> NewJob {
        self.priority = priority;
        self
    }

    /// The maximum number of attempts, after which it is buried: 1 to 1000.
    pub fn max_attempts(mut self, max_attempts: u32) -> NewJob {
        self.max_attempts = max_attempts;
        self
    }

    /// How long one attempt may take.
    pub fn timeout(mut self, timeout: Duration) -> NewJob {
        self.timeout = Some(timeout);
        self
    }

    /// The job's identity: while a job of this kind and key is live, enqueueing another returns the live one.
    pub fn key(mut self, key: impl Into<String>) -> NewJob {
        self.key = Some(key.into());
        self
    }

    /// Its lane: jobs of one lane run one at a time, in the order in which they were enqueued, across all queues and nodes. A
    /// job that waits for its time, as after a failure, keeps the others of its lane waiting, unless [`NewJob::lane_pass`] is set.
    pub fn lane(mut self, lane: impl Into<Lane>) -> NewJob {
        self.lane = Some(lane.into());
        self
    }

    /// While this job waits for its time (a delay, or the next attempt), others of its lane may run.
    pub fn lane_pass(mut self, pass: bool) -> NewJob {
        self.lane_pass = pass;
        self
    }

    /// Data about the job that is not its payload: a tenant, a trace, a reason.
    pub fn metadata(mut self, metadata: &impl Serialize) -> NewJob {
        self.metadata = Some(to_json(metadata));
        self
    }

    /// The metadata, from JSON text.
    pub fn metadata_raw(mut self, json: impl Into<String>) -> NewJob {
        self.metadata = Some(Ok(json.into()));
        self
    }

    /// Puts the job into a trace: its handler reads it with [`Context::trace`](crate::Context::trace). It is stored in the
    /// metadata, so call this after `metadata`; a `traceparent` that is already there is kept.
    pub fn trace(mut self, trace: &TraceContext) -> NewJob {
        self.metadata = match self.metadata.take() {
            Some(Err(problem)) => Some(Err(problem)),
            metadata => Some(Ok(trace.put_into(metadata.and_then(Result::ok)))),
        };
        self
    }

    /// Whether it is due as soon as it is enqueued.
    pub(crate) fn is_due(&self) -> bool {
        self.run_at.is_none() && self.delay.is_zero()
    }

    /// Refuses what the database cannot store or a reader cannot parse. Every enqueue does this before anything is sent.
    pub fn check(&self) -> Result<(), Error> {
        checked("payload", &self.payload)?;
        if let Some(metadata) = &self.metadata {
            checked("metadata", metadata)?;
        }
        check_name("kind", &self.kind)?;
        check_name("queue", &self.queue)?;
        if let Some(key) = &self.key {
            check_key(key)?;
        }
        match &self.lane {
            Some(lane) => lane.check()?,
            None if self.lane_pass => {
                return Err(Error::Invalid("lane_pass needs a lane: name one".into()));
            }
            None => {}
        }
        if !(-9..=9).contains(&self.priority) {
            return Err(Error::Invalid(format!(
                "priority {} is out of range: -9 to 9, higher first",
                self.priority
            )));
        }
        if !(1..=1000).contains(&self.max_attempts) {
            return Err(Error::Invalid(format!(
                "max_attempts {} is out of range: 1 to 1000",
                self.max_attempts
            )));
        }
        check_span("delay", self.delay)?;
        if let Some(timeout) = self.timeout {
            check_span("timeout", timeout)?;
            if timeout < Duration::from_millis(1) {
                return Err(Error::Invalid("timeout is not a time span above zero".into()));
            }
        }
        match self.run_at {
            Some(time) if time > SystemTime::now() + SPAN_MAX => {
                Err(Error::Invalid("run_at is more than 100 years away".into()))
            }
            _ => Ok(()),
        }
    }
}

impl NewJob {
    /// The bytes of its payload, metadata and key.
    pub(crate) fn bytes(&self) -> usize {
        let json = |json: &Result<String, PayloadError>| json.as_ref().map_or(0, String::len);
        json(&self.payload)
            + self.metadata.as_ref().map_or(0, json)
            + self.key.as_ref().map_or(0, String::len)
    }
}

impl<J: Job> From<&J> for NewJob {
    fn from(job: &J) -> NewJob {
        NewJob::of(job)
    }
}

pub(crate) fn check_span(what: &str, span: Duration) -> Result<(), Error> {
    if span > SPAN_MAX {
        return Err(Error::Invalid(format!("{what} is longer than 100 years")));
    }
    Ok(())
}

/// Checks the name of a queue or kind: 1 to 63 letters, digits and `_ . : / -`. Names appear in tables, logs, metrics and URLs,
/// and these characters are safe in all of them.
pub fn check_name(what: &str, name: &str) -> Result<(), Error> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "_.:/-".contains(c);
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if starts_well && name.len() <= 63 && name.chars().all(allowed) {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "{what} `{}` is not a name: 1 to 63 letters, digits and _ . : / -, starting with a letter or digit",
        name.chars().take(80).collect::<String>().escape_debug()
    )))
}

pub(crate) fn check_key(key: &str) -> Result<(), Error> {
    if key.is_empty() || key.len() > 512 {
        return Err(Error::Invalid(format!("key has {} bytes, it may have 1 to 512", key.len())));
    }
    if key.contains('\0') {
        return Err(Error::Invalid("key holds a NUL character, which Postgres cannot store".into()));
    }
    Ok(())
}

fn checked(what: &'static str, json: &Result<String, PayloadError>) -> Result<(), Error> {
    json.as_ref()
        .map_err(Clone::clone)
        .and_then(|text| payload::check(text))
        .map_err(|problem| Error::Payload { what, problem })
}

pub(crate) fn to_json(value: &impl Serialize) -> Result<String, PayloadError> {
    serde_json::to_string(value).map_err(|error| PayloadError::NotJson(error.to_string()))
}
