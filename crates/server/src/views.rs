//! Jobs, queues, workers, tokens and audit lines as JSON, for the HTTP API and for `pitwheel --output json`.
//!
//! The field names are stable.

use std::time::SystemTime;

use jiff::Timestamp;
use pitwheel::{
    AuditEntry, Error, JobDetail, JobSummary, KindSummary, QueueSummary, State, Token, WorkerSummary,
};
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::limits;
use crate::schemas::{JobState, Name, Role, Transport, WorkerState};

/// A time in UTC (RFC 3339).
pub fn time(time: SystemTime) -> String {
    // Postgres has times beyond the year 9999, RFC 3339 does not. The limits keep jobs far below.
    Timestamp::try_from(time).map_or_else(|_| "out of range".to_owned(), |time| time.to_string())
}

/// The time that a request gives in a field (RFC 3339).
pub(crate) fn parse_time(field: &str, text: &str) -> Result<SystemTime, Error> {
    limits::time(field, text.parse::<Timestamp>().ok().map(SystemTime::from))
}

/// The errors of a job with their times (`at`) in UTC. Postgres writes them in the time zone of the session that wrote
/// them.
pub fn errors_in_utc(mut errors: Value) -> Value {
    for at in errors.as_array_mut().into_iter().flatten().filter_map(|error| error.get_mut("at")) {
        if let Some(utc) = at.as_str().and_then(|at| at.parse::<Timestamp>().ok()) {
            *at = Value::String(utc.to_string());
        }
    }
    errors
}

/// The errors of a job without their messages, which may quote what the job was about.
pub(crate) fn without_messages(mut errors: Value) -> Value {
    for message in errors.as_array_mut().into_iter().flatten().filter_map(|error| error.get_mut("message")) {
        *message = Value::Null;
    }
    errors
}

/// A job in a list.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct JobLine {
    /// The id.
    pub id: i64,
    /// The name that selects its handler.
    #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,62}$")]
    pub kind: String,
    /// The queue.
    #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,62}$")]
    pub queue: String,
    /// `waiting`, `blocked`, `running`, `done`, `dead` or `cancelled`.
    #[schema(value_type = JobState, example = "waiting")]
    pub state: &'static str,
    /// -9 to 9, higher first.
    pub priority: i16,
    /// Attempts so far, including the running one.
    pub attempt: i32,
    /// Attempts before the job is dead.
    pub max_attempts: i32,
    /// The key: at most one live job of a kind has it. Null: the job has none.
    pub key: Option<String>,
    /// The name of the lane: a string, or an array of strings, integers, booleans and nulls. Jobs of one lane run one at a time.
    /// Null: the job has none.
    #[schema(value_type = Option<Value>)]
    pub lane: Option<Value>,
    /// When the job is due, or was due. Of a blocked job: the earliest time at which it runs.
    #[schema(format = DateTime)]
    pub run_at: String,
    /// When it was enqueued.
    #[schema(format = DateTime)]
    pub enqueued_at: String,
    /// When the last attempt started; null: it was never claimed.
    #[schema(format = DateTime)]
    pub claimed_at: Option<String>,
    /// When the job finished; null: it is live.
    #[schema(format = DateTime)]
    pub finished_at: Option<String>,
    /// How far the job is, from 0 to 1; null: its handler reported nothing.
    pub progress: Option<f32>,
    /// The note that its handler reported with the progress.
    pub note: Option<String>,
    /// Whether the job waits, or is blocked, and no live worker takes its kind.
    pub unserved: bool,
    /// Whether key, lane and note, and in full also payload, metadata, result and error messages, are hidden from the caller.
    /// They are null then.
    pub redacted: bool,
}

impl From<JobSummary> for JobLine {
    fn from(job: JobSummary) -> JobLine {
        JobLine::new(job, false)
    }
}

impl JobLine {
    /// `redact` hides key, lane and note if the kind is redacted.
    pub(crate) fn new(job: JobSummary, redact: bool) -> JobLine {
        let redacted = job.redacted && redact;
        let shown = |text: Option<String>| text.filter(|_| !redacted);
        JobLine {
            id: job.id,
            kind: job.kind,
            queue: job.queue,
            state: job.state.as_str(),
            priority: job.priority,
            attempt: job.attempt,
            max_attempts: job.max_attempts,
            key: shown(job.key),
            // Postgres made it canonical JSON when it was stored.
            lane: shown(job.lane).and_then(|lane| serde_json::from_str(&lane).ok()),
            run_at: time(job.run_at),
            enqueued_at: time(job.enqueued_at),
            claimed_at: job.claimed_at.map(time),
            finished_at: job.finished_at.map(time),
            progress: job.progress,
            note: shown(job.note),
            unserved: job.unserved,
            redacted,
        }
    }

    pub(crate) fn is_finished(&self) -> bool {
        ![State::Waiting, State::Blocked, State::Running].iter().any(|live| live.as_str() == self.state)
    }
}

/// One job in full.
#[derive(Debug, Serialize, ToSchema)]
pub struct JobInFull {
    /// The fields that lists show too.
    #[serde(flatten)]
    pub summary: JobLine,
    /// The number of claims so far.
    pub fence: i64,
    /// How often a worker died while it ran the job. Not counted as attempts.
    pub crashes: i16,
    /// The time limit of one attempt, in milliseconds; null: none.
    pub timeout_ms: Option<i64>,
    /// When a cancel of the running job was requested; null: it was not.
    #[schema(format = DateTime)]
    pub cancel_requested_at: Option<String>,
    /// The name of the worker that runs the job, or ran it last.
    pub worker: Option<String>,
    /// The id of the recurring job that it is a run of; null: it is none.
    pub recurring: Option<i64>,
    /// The id of the pipeline that it is a step of; null: it is none.
    pub pipeline: Option<i64>,
    /// The name of the step; null: it is none.
    #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,62}$")]
    pub step: Option<String>,
    /// The payload, byte for byte as it was enqueued.
    #[schema(value_type = Option<Value>)]
    pub payload: Option<Box<RawValue>>,
    /// The metadata, byte for byte as it was enqueued; null: the job has none.
    #[schema(value_type = Option<Value>)]
    pub metadata: Option<Box<RawValue>>,
    /// The result that its handler returned; null: none.
    #[schema(value_type = Option<Value>)]
    pub result: Option<Box<RawValue>>,
    /// The failed attempts, oldest first, each with `attempt`, `cause`, `message` (null if redacted), `worker` and `at`.
    #[schema(value_type = Vec<Value>)]
    pub errors: Value,
}

impl JobInFull {
    /// `redact` hides key, lane, note, payload, metadata, result and error messages if the kind is redacted.
    pub fn new(job: JobDetail, redact: bool) -> JobInFull {
        let redacted = job.summary.redacted && redact;
        // Postgres checked that it is JSON when it was stored.
        let raw = |json: Option<String>| {
            json.filter(|_| !redacted).and_then(|json| RawValue::from_string(json).ok())
        };
        JobInFull {
            summary: JobLine::new(job.summary, redact),
            fence: job.fence,
            crashes: job.crashes,
            timeout_ms: job.timeout_ms,
            cancel_requested_at: job.cancel_requested_at.map(time),
            worker: job.worker,
            recurring: job.recurring,
            pipeline: job.pipeline,
            step: job.step,
            payload: raw(Some(job.payload)),
            metadata: raw(job.metadata),
            result: raw(job.result),
            errors: errors_in_utc(if redacted { without_messages(job.errors) } else { job.errors }),
        }
    }
}

/// A queue with the number of its jobs.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Queue {
    /// The name; `*` stands for all queues while all are paused.
    #[schema(pattern = "^([*]|[A-Za-z0-9][A-Za-z0-9_.:/-]{0,62})$")]
    pub name: String,
    /// When the queue was paused, alone or with all queues; null: it is not paused.
    #[schema(format = DateTime)]
    pub paused_at: Option<String>,
    /// Jobs that are due and not running.
    pub waiting: i64,
    /// Jobs that are running.
    pub running: i64,
    /// Jobs that are not due yet.
    pub later: i64,
    /// Jobs behind another one of their lane.
    pub blocked: i64,
    /// Whether there are more jobs than were counted.
    pub capped: bool,
    /// When the oldest of the counted jobs that wait became due; null: none waits.
    #[schema(format = DateTime)]
    pub oldest_due_at: Option<String>,
}

impl Queue {
    /// A queue without jobs that is not paused.
    pub(crate) fn empty(name: &str) -> Queue {
        let name = name.to_owned();
        let (waiting, running, later, blocked) = (0, 0, 0, 0);
        Queue { name, paused_at: None, waiting, running, later, blocked, capped: false, oldest_due_at: None }
    }
}

impl From<QueueSummary> for Queue {
    fn from(queue: QueueSummary) -> Queue {
        Queue {
            name: queue.name,
            paused_at: queue.paused_at.map(time),
            waiting: queue.waiting,
            running: queue.running,
            later: queue.later,
            blocked: queue.blocked,
            capped: queue.capped,
            oldest_due_at: queue.oldest_due_at.map(time),
        }
    }
}

/// A worker: a process that is connected to Postgres, or one stream of a remote worker.
#[derive(Debug, Serialize, ToSchema)]
pub struct Worker {
    /// The id.
    pub id: i64,
    /// The name that the worker registered with.
    pub name: String,
    /// `alive`, `quiet`, `draining` or `dead`.
    #[schema(value_type = WorkerState, example = "alive")]
    pub state: &'static str,
    /// How it is connected: `direct` (to Postgres) or `grpc`.
    #[schema(value_type = Transport)]
    pub transport: String,
    /// The queues that it takes jobs from.
    #[schema(value_type = Vec<Name>, inline)]
    pub queues: Vec<String>,
    /// The kinds that it runs.
    #[schema(value_type = Vec<Name>, inline)]
    pub kinds: Vec<String>,
    /// How many jobs it runs at a time.
    pub slots: i32,
    /// How many jobs it runs now; the count stops at 1,000.
    pub running: i64,
    /// When it registered.
    #[schema(format = DateTime)]
    pub started_at: String,
    /// When its lease expires, unless it is renewed.
    #[schema(format = DateTime)]
    pub lease_until: String,
    /// When it ended or was declared dead; null: it is alive.
    #[schema(format = DateTime)]
    pub dead_at: Option<String>,
}

impl From<WorkerSummary> for Worker {
    fn from(worker: WorkerSummary) -> Worker {
        Worker {
            id: worker.id,
            state: worker.state(),
            name: worker.name,
            transport: worker.transport,
            queues: worker.queues,
            kinds: worker.kinds,
            slots: worker.slots,
            running: worker.running,
            started_at: time(worker.started_at),
            lease_until: time(worker.lease_until),
            dead_at: worker.dead_at.map(time),
        }
    }
}

/// A kind that has settings or is run by a worker.
#[derive(Debug, Serialize, ToSchema)]
pub struct Kind {
    /// The name.
    #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,62}$")]
    pub name: String,
    /// Whether keys, notes, payloads, metadata, results and error messages are hidden from callers who may not change jobs.
    pub redacted: bool,
    /// How many workers that are alive run it.
    pub workers: i64,
}

impl From<KindSummary> for Kind {
    fn from(kind: KindSummary) -> Kind {
        Kind { name: kind.name, redacted: kind.redacted, workers: kind.workers }
    }
}

/// A token, without its secret.
#[derive(Debug, Serialize, ToSchema)]
pub struct TokenLine {
    /// The name that people use for it.
    #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,62}$")]
    pub name: String,
    /// `viewer`, `operator`, `admin`, `worker` or `producer`.
    #[schema(value_type = Role, example = "worker")]
    pub role: &'static str,
    /// When it was created.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// Who created it, as in `actor` of the audit log.
    pub created_by: String,
    /// When it expires; null: it is valid until it is revoked.
    #[schema(format = DateTime)]
    pub expires_at: Option<String>,
}

impl From<Token> for TokenLine {
    fn from(token: Token) -> TokenLine {
        TokenLine {
            name: token.name,
            role: token.role.as_str(),
            created_at: time(token.created_at),
            created_by: token.created_by,
            expires_at: token.expires_at.map(time),
        }
    }
}

/// One change in the audit log.
#[derive(Debug, Serialize, ToSchema)]
pub struct AuditLine {
    /// The id.
    pub id: i64,
    /// When the change was made.
    #[schema(format = DateTime)]
    pub at: String,
    /// Who made it: `token` and the token's name, `loopback`, or a name that the CLI or a program gave.
    pub actor: String,
    /// What was changed.
    #[schema(example = "job.cancel")]
    pub action: String,
    /// The queue, worker, kind or token that was changed; of a reschedule, the new time. Null: the change has none.
    pub subject: Option<String>,
    /// The jobs that were changed; null: none.
    pub job_ids: Option<Vec<i64>>,
}

impl From<AuditEntry> for AuditLine {
    fn from(entry: AuditEntry) -> AuditLine {
        AuditLine {
            id: entry.id,
            at: time(entry.at),
            actor: entry.actor,
            action: entry.action,
            subject: entry.subject,
            job_ids: entry.job_ids,
        }
    }
}
