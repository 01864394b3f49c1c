//! Jobs, queues, workers and the rest in JSON. The names are a promise, to callers of the API and of the CLI alike.

use std::time::SystemTime;

use jiff::Timestamp;
use pitwheel::{AuditEntry, JobDetail, JobSummary, KindSummary, QueueSummary, State, Token, WorkerSummary};
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;
use utoipa::ToSchema;

/// RFC 3339, in UTC.
pub fn time(time: SystemTime) -> String {
    // Postgres reaches further than RFC 3339 does; no job of ours does.
    Timestamp::try_from(time).map_or_else(|_| "out of range".to_owned(), |time| time.to_string())
}

/// A job in a list.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct JobLine {
    /// Its id.
    pub id: i64,
    /// The name that picks its handler.
    pub kind: String,
    /// The queue it waits in, or waited in.
    pub queue: String,
    /// `waiting`, `running`, `done`, `dead` or `cancelled`.
    #[schema(example = "waiting")]
    pub state: &'static str,
    /// -9 to 9, higher first.
    pub priority: i16,
    /// Attempts so far, the running one included.
    pub attempt: i32,
    /// Attempts there are.
    pub max_attempts: i32,
    /// Its identity among the live jobs of its kind.
    pub key: Option<String>,
    /// When it is, or was, due.
    pub run_at: String,
    /// When it was enqueued.
    pub enqueued_at: String,
    /// When its last attempt began.
    pub claimed_at: Option<String>,
    /// When it was settled for good.
    pub finished_at: Option<String>,
    /// Between 0 and 1, as its handler said.
    pub progress: Option<f32>,
    /// What its handler said with it.
    pub note: Option<String>,
}

impl From<JobSummary> for JobLine {
    fn from(job: JobSummary) -> JobLine {
        JobLine {
            id: job.id,
            kind: job.kind,
            queue: job.queue,
            state: job.state.as_str(),
            priority: job.priority,
            attempt: job.attempt,
            max_attempts: job.max_attempts,
            key: job.key,
            run_at: time(job.run_at),
            enqueued_at: time(job.enqueued_at),
            claimed_at: job.claimed_at.map(time),
            finished_at: job.finished_at.map(time),
            progress: job.progress,
            note: job.note,
        }
    }
}

impl JobLine {
    pub(crate) fn is_finished(&self) -> bool {
        ![State::Waiting.as_str(), State::Running.as_str()].contains(&self.state)
    }
}

/// All about one job.
#[derive(Debug, Serialize, ToSchema)]
pub struct JobInFull {
    /// What a list shows.
    #[serde(flatten)]
    pub summary: JobLine,
    /// How often it was claimed.
    pub fence: i64,
    /// How often its worker died under it, beside the attempts.
    pub crashes: i16,
    /// How long an attempt may take, in milliseconds.
    pub timeout_ms: Option<i64>,
    /// When somebody asked to cancel it.
    pub cancel_requested_at: Option<String>,
    /// The worker that holds it, or held it last.
    pub worker: Option<String>,
    /// Whether payload, metadata and result are kept from you.
    pub redacted: bool,
    /// The payload, byte for byte as it was enqueued.
    #[schema(value_type = Option<Value>)]
    pub payload: Option<Box<RawValue>>,
    /// The metadata, byte for byte as it was enqueued.
    #[schema(value_type = Option<Value>)]
    pub metadata: Option<Box<RawValue>>,
    /// What its handler gave back.
    #[schema(value_type = Option<Value>)]
    pub result: Option<Box<RawValue>>,
    /// Its failed attempts, oldest first: attempt, cause, message, worker, at.
    #[schema(value_type = Vec<Value>)]
    pub errors: Value,
}

impl JobInFull {
    /// With what may be kept from those who only look, or without.
    pub fn new(job: JobDetail, only_looks: bool) -> JobInFull {
        let redacted = job.redacted && only_looks;
        // What is kept as JSON in Postgres can be read as JSON.
        let raw = |json: Option<String>| {
            json.filter(|_| !redacted).and_then(|json| RawValue::from_string(json).ok())
        };
        JobInFull {
            summary: job.summary.into(),
            fence: job.fence,
            crashes: job.crashes,
            timeout_ms: job.timeout_ms,
            cancel_requested_at: job.cancel_requested_at.map(time),
            worker: job.worker,
            redacted,
            payload: raw(Some(job.payload)),
            metadata: raw(job.metadata),
            result: raw(job.result),
            errors: in_utc(job.errors),
        }
    }
}

/// Postgres writes the times of errors in the zone of whoever wrote them.
fn in_utc(mut errors: Value) -> Value {
    for at in errors.as_array_mut().into_iter().flatten().filter_map(|error| error.get_mut("at")) {
        if let Some(utc) = at.as_str().and_then(|at| at.parse::<Timestamp>().ok()) {
            *at = Value::String(utc.to_string());
        }
    }
    errors
}

/// A queue and what is in it.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Queue {
    /// Its name; `*` while all are paused.
    pub name: String,
    /// Since when it is paused, by itself or with all queues.
    pub paused_at: Option<String>,
    /// Jobs that are due and not held.
    pub waiting: i64,
    /// Jobs that are held.
    pub running: i64,
    /// Jobs whose time has not come.
    pub later: i64,
    /// Whether there are more than were counted.
    pub capped: bool,
    /// The time since which the oldest of the counted waits.
    pub oldest_due_at: Option<String>,
}

impl From<QueueSummary> for Queue {
    fn from(queue: QueueSummary) -> Queue {
        Queue {
            name: queue.name,
            paused_at: queue.paused_at.map(time),
            waiting: queue.waiting,
            running: queue.running,
            later: queue.later,
            capped: queue.capped,
            oldest_due_at: queue.oldest_due_at.map(time),
        }
    }
}

/// A worker: a process with a connection to Postgres, or a stream of one that has none.
#[derive(Debug, Serialize, ToSchema)]
pub struct Worker {
    /// Its id.
    pub id: i64,
    /// The name it gave itself.
    pub name: String,
    /// `alive`, `quiet`, `draining` or `dead`.
    #[schema(example = "alive")]
    pub state: &'static str,
    /// `direct`, to Postgres, or `grpc`.
    pub transport: String,
    /// What it takes from.
    pub queues: Vec<String>,
    /// What it runs.
    pub kinds: Vec<String>,
    /// How many jobs at a time.
    pub slots: i32,
    /// How many now, counted up to 1,000.
    pub running: i64,
    /// When it came.
    pub started_at: String,
    /// Until when it need not be heard of.
    pub lease_until: String,
    /// When it ended, or was declared dead.
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

/// A kind about which something was said, or that living workers run.
#[derive(Debug, Serialize, ToSchema)]
pub struct Kind {
    /// Its name.
    pub name: String,
    /// Whether payloads, metadata and results are kept from those who may only look.
    pub redacted: bool,
    /// How many living workers run it.
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
    /// What people call it.
    pub name: String,
    /// `viewer`, `operator`, `admin`, `worker` or `producer`.
    #[schema(example = "worker")]
    pub role: &'static str,
    /// When it was made.
    pub created_at: String,
    /// By whom.
    pub created_by: String,
    /// Until when it is good.
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

/// A change that somebody made.
#[derive(Debug, Serialize, ToSchema)]
pub struct AuditLine {
    /// Its id.
    pub id: i64,
    /// When.
    pub at: String,
    /// Who.
    pub actor: String,
    /// What.
    #[schema(example = "job.cancel")]
    pub action: String,
    /// To which queue, worker or token; of a reschedule, to which time.
    pub subject: Option<String>,
    /// To which jobs.
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
