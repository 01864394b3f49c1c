//! Recurring jobs as JSON, for the HTTP API and for `pitwheel --output json`.
//!
//! The field names are stable.

use pitwheel::{RecurringDetail, RecurringJob};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::schemas::Misfire;
use crate::views::time;

/// A recurring job in a list.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct RecurringLine {
    /// The id.
    pub id: i64,
    /// The kind of its runs.
    #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,62}$")]
    pub kind: String,
    /// The key: a kind has one recurring job with it. Null if redacted.
    pub key: Option<String>,
    /// The queue of its runs.
    #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,62}$")]
    pub queue: String,
    /// The priority of its runs: -9 to 9, higher first.
    pub priority: i16,
    /// When it runs: `every 15m`, `cron 30 2 * * 1-5 Europe/Zurich` or `adaptive 15m..24h`, each with an optional `jitter 30s`.
    #[schema(example = "every 15m")]
    pub cadence: String,
    /// What becomes of planned times at which it could not run: `skip`, `one` or `all`.
    #[schema(value_type = Misfire, example = "one")]
    pub misfire: &'static str,
    /// Whether it runs.
    pub enabled: bool,
    /// Whether a run is in progress.
    pub running: bool,
    /// When its next run is due, or the one in progress was; kept while it is disabled. Null: a node is yet to plan it.
    #[schema(format = DateTime)]
    pub next_run_at: Option<String>,
    /// Why then.
    pub reason: Option<String>,
    /// The current interval of an adaptive cadence, in milliseconds; null: it has another cadence.
    pub interval_ms: Option<u64>,
    /// The number of its runs so far.
    pub runs: i64,
    /// The number of planned times that were not run.
    pub skipped: i64,
    /// When its last run ended; null: it has not run yet.
    #[schema(format = DateTime)]
    pub last_run_at: Option<String>,
    /// The error of its last attempt; null: it did not fail, or the kind is redacted.
    pub last_error: Option<String>,
    /// How many attempts in a row have failed.
    pub consecutive_failures: u32,
    /// The time limit of one attempt, in milliseconds; null: none.
    pub timeout_ms: Option<u64>,
    /// Attempts of one run before it is dead and the next run follows; null: no limit.
    pub max_attempts: Option<u32>,
    /// When it was created.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// When its definition was last changed.
    #[schema(format = DateTime)]
    pub updated_at: String,
    /// Whether key and error, and in full also payload and metadata, are hidden from the caller. They are null then.
    pub redacted: bool,
}

impl From<RecurringJob> for RecurringLine {
    fn from(recurring: RecurringJob) -> RecurringLine {
        RecurringLine::new(recurring, false)
    }
}

impl RecurringLine {
    /// `redact` hides key and error if the kind is redacted.
    pub(crate) fn new(recurring: RecurringJob, redact: bool) -> RecurringLine {
        let redacted = recurring.redacted && redact;
        let ms = |span: std::time::Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        RecurringLine {
            id: recurring.id,
            kind: recurring.kind,
            key: Some(recurring.key).filter(|_| !redacted),
            queue: recurring.queue,
            priority: recurring.priority,
            cadence: recurring.cadence,
            misfire: recurring.misfire.as_str(),
            enabled: recurring.enabled,
            running: recurring.running,
            next_run_at: recurring.next_run_at.map(time),
            reason: recurring.reason,
            interval_ms: recurring.interval.map(ms),
            runs: recurring.runs,
            skipped: recurring.skipped,
            last_run_at: recurring.last_run_at.map(time),
            last_error: recurring.last_error.filter(|_| !redacted),
            consecutive_failures: recurring.consecutive_failures,
            timeout_ms: recurring.timeout.map(ms),
            max_attempts: recurring.max_attempts,
            created_at: time(recurring.created_at),
            updated_at: time(recurring.updated_at),
            redacted,
        }
    }
}

/// One recurring job in full.
#[derive(Debug, Serialize, ToSchema)]
pub struct RecurringInFull {
    /// The fields that lists show too.
    #[serde(flatten)]
    pub summary: RecurringLine,
    /// The payload of its runs; null if redacted.
    #[schema(value_type = Option<Value>)]
    pub payload: Option<Box<RawValue>>,
    /// The metadata of its runs; null: none, or redacted.
    #[schema(value_type = Option<Value>)]
    pub metadata: Option<Box<RawValue>>,
}

impl RecurringInFull {
    /// `redact` hides key, error, payload and metadata if the kind is redacted.
    pub fn new(recurring: RecurringDetail, redact: bool) -> RecurringInFull {
        let redacted = recurring.summary.redacted && redact;
        // Postgres checked that it is JSON when it was stored.
        let raw = |json: Option<String>| {
            json.filter(|_| !redacted).and_then(|json| RawValue::from_string(json).ok())
        };
        RecurringInFull {
            payload: raw(Some(recurring.payload)),
            metadata: raw(recurring.metadata),
            summary: RecurringLine::new(recurring.summary, redact),
        }
    }
}
