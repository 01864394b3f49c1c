//! Reading what a claim returned, and what belongs to its jobs and stands elsewhere.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::engine::enqueue::unsigned;
use crate::engine::recurring::{carried, recurrences};
use crate::error::Error;
use crate::job::claim::{Claim, Claimed};
use crate::job::recurrence::Recurrence;
use crate::job::step::CurrentStep;
use crate::postgres::{Params, Sql};

/// The columns that all claims have, in the same order. Those after them differ.
pub(super) const CLAIM_COLUMNS: usize = 24;

/// Reads the jobs of a claim, in the order in which they are to start; `held` is the holder and the hold of a row. The recurring jobs
/// of runs that do not carry their state and the parents of steps are read by statements of their own, so that claims without them do not
/// pay for it. If one of these fails, the jobs are held by a worker that does not know it: `release_unknown` releases them.
pub(super) async fn read_claimed(
    client: &impl Sql,
    rows: &[Row],
    held: impl Fn(&Row) -> (i64, i64),
) -> Result<Vec<Claimed>, Error> {
    let mut names = Names::default();
    let mut jobs: Vec<Claimed> = rows.iter().map(|row| claimed(row, held(row), &mut names)).collect();
    let is_unread = |(job, _): &(&Claimed, &Row)| job.recurrence.is_none();
    let runs: Vec<i64> = jobs.iter().zip(rows).filter(is_unread).filter_map(|(_, row)| row.get(13)).collect();
    if !runs.is_empty() {
        let mut recurrences = recurrences(client, &runs).await?;
        for (job, row) in jobs.iter_mut().zip(rows).filter(|(job, _)| job.recurrence.is_none()) {
            let run: Option<i64> = row.get(13);
            job.recurrence = run.and_then(|id| recurrences.remove(&id)).map(Box::new);
        }
    }
    let steps = rows.iter().filter_map(|row| Some((row.get::<_, Option<i64>>(15)?, row.get::<_, &str>(16))));
    let (pipelines, names): (Vec<i64>, Vec<&str>) = steps.unzip();
    if !pipelines.is_empty() {
        let mut steps = steps_of(client, &pipelines, &names).await?;
        for (job, row) in jobs.iter_mut().zip(rows) {
            let pipeline: Option<i64> = row.get(15);
            job.step = pipeline.and_then(|pipeline| steps.remove(&(pipeline, row.get(16))));
        }
    }
    // A statement returns the rows that it updated in no particular order.
    jobs.sort_unstable_by_key(|job| (Reverse(job.priority), job.run_at, job.claim.id));
    Ok(jobs)
}

async fn steps_of(
    client: &impl Sql,
    pipelines: &[i64],
    names: &[&str],
) -> Result<HashMap<(i64, String), Box<CurrentStep>>, Error> {
    let params: Params = &[(&pipelines, Type::INT8_ARRAY), (&names, Type::TEXT_ARRAY)];
    let rows = client.rows(include_str!("../../sql/engine/step_contexts.sql"), params).await?;
    let steps = rows.iter().filter_map(|row| CurrentStep::parse(row.get(0)));
    Ok(steps.map(|step| ((step.pipeline, step.name.clone()), step)).collect())
}

/// The names of queues and kinds in one claim, each allocated once.
#[derive(Default)]
struct Names(Vec<Arc<str>>);

impl Names {
    fn shared(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.0.iter().find(|known| ***known == *name) {
            return known.clone();
        }
        let name: Arc<str> = name.into();
        self.0.push(name.clone());
        name
    }
}

/// Reads a row by position: by name, each of 500 rows would look up 24 names.
fn claimed(row: &Row, (holder, hold): (i64, i64), names: &mut Names) -> Claimed {
    let timeout_ms: Option<i64> = row.get(4);
    Claimed {
        claim: Claim { id: row.get(0), fence: row.get(1), holder },
        attempt: unsigned(row.get(2)),
        max_attempts: unsigned(row.get(3)),
        timeout: timeout_ms.map(|ms| Duration::from_millis(ms.unsigned_abs())),
        run_at: row.get(5),
        priority: row.get(6),
        queue: names.shared(row.get(7)),
        kind: names.shared(row.get(8)),
        key: row.get(9),
        payload: row.get(10),
        metadata: row.get(11),
        ctid: row.get(12),
        recurrence: recurrence(row),
        lane: row.get(14),
        step: None,
        hold,
    }
}

/// The recurring job of a run, if the run carries its state, and if that can be read.
fn recurrence(row: &Row) -> Option<Box<Recurrence>> {
    row.get::<_, Option<SystemTime>>(21)?;
    carried(row.get(13), row, 17).ok().map(Box::new)
}
