//! Adding jobs: one or thousands, in one statement, without ever raising for a duplicate key.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio_postgres::types::Type;

use crate::db::Sql;
use crate::error::Error;
use crate::job::NewJob;

pub(crate) const ENQUEUE: &str = include_str!("../sql/enqueue.sql");
pub(crate) const ENQUEUE_KEYED: &str = include_str!("../sql/enqueue_keyed.sql");

/// Rows per statement: enough to make the round trip cheap, small enough to bound a message (500 × 256 KiB at worst).
pub(crate) const BATCH_MAX: usize = 500;
/// Each round means that a job with the same key ended while we looked for it; more than this is not chance.
const ROUNDS_MAX: usize = 50;

/// What became of a job given to enqueue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Enqueued {
    /// The job's id.
    pub id: i64,
    /// False when a live job of the kind had the key already: this is that one, and nothing was changed.
    pub is_new: bool,
}

/// A batch as columns, the way it goes to `unnest`.
#[derive(Default)]
pub(crate) struct Columns {
    pub(crate) kinds: Vec<String>,
    pub(crate) payloads: Vec<String>,
    pub(crate) queues: Vec<String>,
    pub(crate) delays_ms: Vec<i64>,
    pub(crate) run_ats_us: Vec<Option<i64>>,
    pub(crate) priorities: Vec<i16>,
    pub(crate) max_attempts: Vec<i32>,
    pub(crate) timeouts_ms: Vec<Option<i64>>,
    pub(crate) metadata: Vec<Option<String>>,
    pub(crate) keys: Vec<Option<String>>,
}

impl Columns {
    fn push(&mut self, job: &NewJob) {
        self.kinds.push(job.kind.clone());
        self.payloads.push(job.payload.clone().unwrap_or_default());
        self.queues.push(job.queue.clone());
        self.delays_ms.push(millis(job.delay));
        self.run_ats_us.push(job.run_at.map(micros));
        self.priorities.push(job.priority);
        self.max_attempts.push(i32::try_from(job.max_attempts).unwrap_or(i32::MAX));
        self.timeouts_ms.push(job.timeout.map(millis));
        self.metadata.push(job.metadata.as_ref().and_then(|json| json.clone().ok()));
        self.keys.push(job.key.clone());
    }

    pub(crate) fn keyed(&self) -> bool {
        self.keys.iter().any(Option::is_some)
    }
}

/// Enqueues everything through `send`, which runs one batch and gives back an id (null: ask again) and whether it is new.
///
/// All jobs are checked before the first is sent.
pub(crate) async fn enqueue_with(
    jobs: &[NewJob],
    mut send: impl AsyncFnMut(Columns) -> Result<Vec<(Option<i64>, bool)>, Error>,
) -> Result<Vec<Enqueued>, Error> {
    for job in jobs {
        job.check()?;
    }
    let mut enqueued = vec![None; jobs.len()];
    let mut left: Vec<usize> = (0..jobs.len()).collect();
    for _ in 0..ROUNDS_MAX {
        let mut unanswered = Vec::new();
        for batch in left.chunks(BATCH_MAX) {
            let mut columns = Columns::default();
            batch.iter().for_each(|&at| columns.push(&jobs[at]));
            for (&at, (id, is_new)) in batch.iter().zip(send(columns).await?) {
                match id {
                    Some(id) => enqueued[at] = Some(Enqueued { id, is_new }),
                    None => unanswered.push(at),
                }
            }
        }
        left = unanswered;
        if left.is_empty() {
            return Ok(enqueued.into_iter().flatten().collect());
        }
    }
    Err(Error::Invalid(format!(
        "jobs with key {:?} end faster than they can be looked up: enqueue again",
        jobs[left[0]].key.as_deref().unwrap_or_default()
    )))
}

/// One batch, on a connection of the engine's own driver.
pub(crate) async fn send(client: &impl Sql, columns: Columns) -> Result<Vec<(Option<i64>, bool)>, Error> {
    let keyed = columns.keyed();
    let mut params: Vec<(&(dyn tokio_postgres::types::ToSql + Sync), Type)> = vec![
        (&columns.kinds, Type::TEXT_ARRAY),
        (&columns.payloads, Type::TEXT_ARRAY),
        (&columns.queues, Type::TEXT_ARRAY),
        (&columns.delays_ms, Type::INT8_ARRAY),
        (&columns.run_ats_us, Type::INT8_ARRAY),
        (&columns.priorities, Type::INT2_ARRAY),
        (&columns.max_attempts, Type::INT4_ARRAY),
        (&columns.timeouts_ms, Type::INT8_ARRAY),
        (&columns.metadata, Type::TEXT_ARRAY),
    ];
    if keyed {
        params.push((&columns.keys, Type::TEXT_ARRAY));
    }
    let rows = client.rows(if keyed { ENQUEUE_KEYED } else { ENQUEUE }, &params).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

pub(crate) fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

/// Times before 1970 have passed anyway.
fn micros(time: SystemTime) -> i64 {
    let span = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}
