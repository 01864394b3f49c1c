//! Adding jobs: one or thousands, in few statements. A duplicate key is a result, not an error.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio_postgres::types::{ToSql, Type};

use crate::error::Error;
use crate::job::lane::Lane;
use crate::job::limits::{ENQUEUE_MAX, LANES_MAX};
use crate::job::new_job::NewJob;
use crate::postgres::Sql;

pub(crate) const ENQUEUE: &str = include_str!("../../sql/engine/enqueue.sql");
const ENQUEUE_ONE: &str = include_str!("../../sql/engine/enqueue_one.sql");
pub(crate) const ENQUEUE_KEYED: &str = include_str!("../../sql/engine/enqueue_keyed.sql");

/// A further round means that the live job with the same key ended between two reads; more rounds than this are not chance.
const ROUNDS_MAX: usize = 50;

/// The result of an enqueue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Enqueued {
    /// The job's id.
    pub id: i64,
    /// False: a live job of the kind has the key already. `id` is that job, and nothing was changed.
    pub is_new: bool,
}

/// A batch of jobs as columns for `unnest`. One that is null for every job may be empty.
#[derive(Default)]
pub(crate) struct Columns<'a> {
    pub(crate) kinds: Vec<&'a str>,
    pub(crate) payloads: Vec<&'a str>,
    pub(crate) queues: Vec<&'a str>,
    pub(crate) delays_ms: Vec<i64>,
    pub(crate) run_ats_us: Vec<Option<i64>>,
    pub(crate) priorities: Vec<i16>,
    pub(crate) max_attempts: Vec<i32>,
    pub(crate) timeouts_ms: Vec<Option<i64>>,
    pub(crate) metadata: Vec<Option<&'a str>>,
    pub(crate) keys: Vec<Option<&'a str>>,
    pub(crate) lanes: Vec<Option<&'a str>>,
    pub(crate) lane_passes: Vec<bool>,
    /// Only for followers.
    pub(crate) steps: Vec<Option<&'a str>>,
}

impl<'a> Columns<'a> {
    pub(crate) fn push(&mut self, job: &'a NewJob) {
        self.kinds.push(&job.kind);
        self.payloads.push(job.payload.as_deref().unwrap_or_default());
        self.queues.push(&job.queue);
        self.delays_ms.push(millis(job.delay));
        self.run_ats_us.push(job.run_at.map(micros));
        self.priorities.push(job.priority);
        self.max_attempts.push(i32::try_from(job.max_attempts).unwrap_or(i32::MAX));
        self.timeouts_ms.push(job.timeout.map(millis));
        self.metadata.push(job.metadata.as_ref().and_then(|json| json.as_deref().ok()));
        self.keys.push(job.key.as_deref());
        self.lanes.push(job.lane.as_ref().map(Lane::as_json));
        self.lane_passes.push(job.lane_pass);
        self.steps.push(job.step.as_deref());
    }

    /// Empties the columns that are null for every job: `unnest` adds the nulls again, and neither side has to write and read them.
    fn drop_nulls(&mut self) {
        fn clear_if_null<T>(column: &mut Vec<Option<T>>) {
            if column.iter().all(Option::is_none) {
                column.clear();
            }
        }
        [&mut self.run_ats_us, &mut self.timeouts_ms].into_iter().for_each(clear_if_null);
        [&mut self.metadata, &mut self.keys, &mut self.lanes].into_iter().for_each(clear_if_null);
    }

    /// The queues in which something is due at once.
    pub(crate) fn due_queues(&self) -> Vec<&'a str> {
        let run_at = |at: usize| self.run_ats_us.get(at).copied().flatten();
        let due = |at: &usize| self.delays_ms[*at] == 0 && run_at(*at).is_none();
        let mut queues: Vec<&str> = (0..self.queues.len()).filter(due).map(|at| self.queues[at]).collect();
        queues.sort_unstable();
        queues.dedup();
        queues
    }

    /// Whether some of the jobs have a key or a lane.
    pub(crate) fn keyed(&self) -> bool {
        self.keys.iter().chain(&self.lanes).any(Option::is_some)
    }
}

/// A job's id and whether it is new. Without an id the job must be sent again.
pub(crate) type Inserted = (Option<i64>, bool);

/// An enqueue in progress, one batch at a time, for any driver.
pub(crate) struct Enqueuing<'a> {
    jobs: &'a [NewJob],
    enqueued: Vec<Option<Enqueued>>,
    /// What is to be sent in this round, last first.
    left: Vec<usize>,
    /// What is to be sent in the next round.
    again: Vec<usize>,
    /// The batch that was sent last.
    sent: Vec<usize>,
    rounds: usize,
}

impl<'a> Enqueuing<'a> {
    /// Checks all jobs before the first is sent.
    pub(crate) fn new(jobs: &'a [NewJob]) -> Result<Enqueuing<'a>, Error> {
        jobs.iter().try_for_each(NewJob::check)?;
        // Reversed, because batches are taken from the end.
        let left = (0..jobs.len()).rev().collect();
        let enqueued = vec![None; jobs.len()];
        Ok(Enqueuing { jobs, enqueued, left, again: Vec::new(), sent: Vec::new(), rounds: 1 })
    }

    /// The next batch to send; `None` when every job has its result.
    pub(crate) fn next(&mut self) -> Result<Option<Columns<'a>>, Error> {
        if self.left.is_empty() {
            self.left = std::mem::take(&mut self.again);
            self.left.reverse();
            self.rounds += 1;
        }
        let Some(last) = self.left.last() else { return Ok(None) };
        if self.rounds > ROUNDS_MAX {
            let key = self.jobs[*last].key.as_deref().unwrap_or_default();
            return Err(Error::Invalid(format!(
                "jobs with key `{key}` end faster than they can be looked up: try again"
            )));
        }
        let in_lane = |at: &usize| self.jobs[*at].lane.is_some();
        let most =
            if self.left.iter().rev().take(ENQUEUE_MAX).any(in_lane) { LANES_MAX } else { ENQUEUE_MAX };
        self.sent = self.left.split_off(self.left.len().saturating_sub(most));
        self.sent.reverse();
        let mut columns = Columns::default();
        self.sent.iter().for_each(|&at| columns.push(&self.jobs[at]));
        columns.drop_nulls();
        Ok(Some(columns))
    }

    /// Takes the results of the batch that was sent last.
    pub(crate) fn inserted(&mut self, inserted: Vec<Inserted>) {
        for (at, (id, is_new)) in std::mem::take(&mut self.sent).into_iter().zip(inserted) {
            match id {
                Some(id) => self.enqueued[at] = Some(Enqueued { id, is_new }),
                None => self.again.push(at),
            }
        }
    }

    /// One result per job, in the order given.
    pub(crate) fn finish(self) -> Vec<Enqueued> {
        self.enqueued.into_iter().flatten().collect()
    }
}

/// The types of the parameters of the statement for one job without key and lane.
const TYPES_OF_ONE: [Type; 9] = [
    Type::TEXT,
    Type::TEXT,
    Type::TEXT,
    Type::INT8,
    Type::INT8,
    Type::INT2,
    Type::INT4,
    Type::INT8,
    Type::TEXT,
];

/// The types of the parameters of the statement for keys and lanes. The one for many jobs without them takes the first nine.
const TYPES: [Type; 13] = [
    Type::TEXT_ARRAY,
    Type::TEXT_ARRAY,
    Type::TEXT_ARRAY,
    Type::INT8_ARRAY,
    Type::INT8_ARRAY,
    Type::INT2_ARRAY,
    Type::INT4_ARRAY,
    Type::INT8_ARRAY,
    Type::TEXT_ARRAY,
    Type::TEXT_ARRAY,
    Type::TEXT_ARRAY,
    Type::BOOL_ARRAY,
    Type::BOOL,
];

/// The statement for this batch, and the types of its parameters.
pub(crate) fn statement(columns: &Columns<'_>) -> (&'static str, &'static [Type]) {
    const ONE: &[Type] = &TYPES_OF_ONE;
    const KEYED: &[Type] = &TYPES;
    if columns.keyed() {
        (ENQUEUE_KEYED, KEYED)
    } else if columns.kinds.len() == 1 {
        (ENQUEUE_ONE, ONE)
    } else {
        (ENQUEUE, &KEYED[..ONE.len()])
    }
}

/// Sends one batch with the engine's own driver. `promote`: lanes without a head get one at once; not in a user's transaction, because
/// until it commits no other session could promote these lanes.
pub(crate) async fn send(
    client: &impl Sql,
    columns: Columns<'_>,
    promote: bool,
) -> Result<Vec<Inserted>, Error> {
    let (sql, types) = statement(&columns);
    let (run_at, timeout) = (first_of(&columns.run_ats_us), first_of(&columns.timeouts_ms));
    let metadata = first_of(&columns.metadata);
    let values: Vec<&(dyn ToSql + Sync)> = if sql == ENQUEUE_ONE {
        vec![
            &columns.kinds[0],
            &columns.payloads[0],
            &columns.queues[0],
            &columns.delays_ms[0],
            &run_at,
            &columns.priorities[0],
            &columns.max_attempts[0],
            &timeout,
            &metadata,
        ]
    } else {
        vec![
            &columns.kinds,
            &columns.payloads,
            &columns.queues,
            &columns.delays_ms,
            &columns.run_ats_us,
            &columns.priorities,
            &columns.max_attempts,
            &columns.timeouts_ms,
            &columns.metadata,
            &columns.keys,
            &columns.lanes,
            &columns.lane_passes,
            &promote,
        ]
    };
    let params: Vec<_> = values.into_iter().zip(types.iter().cloned()).collect();
    let rows = client.rows(sql, &params).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

/// The first value of a column, which is empty if it is null for every job.
fn first_of<T: Copy>(column: &[Option<T>]) -> Option<T> {
    column.first().copied().flatten()
}

/// The result of an enqueue of one job.
pub(crate) fn only(enqueued: Vec<Enqueued>) -> Result<Enqueued, Error> {
    enqueued.first().copied().ok_or_else(|| Error::Invalid("the enqueue returned no row".into()))
}

pub(crate) fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

/// A time before 1970 means now, like any time in the past.
pub(crate) fn micros(time: SystemTime) -> i64 {
    let span = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

pub(crate) fn unsigned(number: i32) -> u32 {
    u32::try_from(number).unwrap_or(0)
}
