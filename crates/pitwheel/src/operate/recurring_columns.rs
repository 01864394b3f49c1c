//! New recurring jobs as columns for `unnest`.

use tokio_postgres::types::{ToSql, Type};

use crate::engine::enqueue::{micros, millis};
use crate::job::new_recurring::NewRecurring;
use crate::job::recurrence::Plan;

/// A batch of new recurring jobs as columns for `unnest`.
#[derive(Default)]
pub(crate) struct NewColumns<'a> {
    pub(crate) kinds: Vec<&'a str>,
    pub(crate) keys: Vec<&'a str>,
    pub(crate) cadences: Vec<String>,
    pub(crate) payloads: Vec<&'a str>,
    pub(crate) misfires: Vec<&'a str>,
    pub(crate) queues: Vec<&'a str>,
    pub(crate) priorities: Vec<i32>,
    pub(crate) max_attempts: Vec<Option<i32>>,
    pub(crate) timeouts_ms: Vec<Option<i64>>,
    pub(crate) metadata: Vec<Option<&'a str>>,
    pub(crate) first_us: Vec<i64>,
    pub(crate) first_anchors_us: Vec<i64>,
    pub(crate) changed_us: Vec<i64>,
    pub(crate) changed_anchors_us: Vec<i64>,
    pub(crate) intervals_ms: Vec<Option<i64>>,
}

impl<'a> NewColumns<'a> {
    pub(crate) fn new(batch: &'a [NewRecurring], plans: &[(Plan, Plan)]) -> NewColumns<'a> {
        let mut columns = NewColumns::default();
        for (new, (first, changed)) in batch.iter().zip(plans) {
            let job = &new.job;
            columns.kinds.push(&job.kind);
            columns.keys.push(&new.key);
            columns.cadences.push(new.cadence.to_string());
            columns.payloads.push(job.payload.as_deref().unwrap_or_default());
            columns.misfires.push(new.misfire.as_str());
            columns.queues.push(&job.queue);
            columns.priorities.push(job.priority.into());
            columns.max_attempts.push(new.max_attempts.map(|max| i32::try_from(max).unwrap_or(i32::MAX)));
            columns.timeouts_ms.push(job.timeout.map(millis));
            columns.metadata.push(job.metadata.as_ref().and_then(|json| json.as_deref().ok()));
            columns.first_us.push(micros(first.next_run_at));
            columns.first_anchors_us.push(micros(first.anchor_at));
            columns.changed_us.push(micros(changed.next_run_at));
            columns.changed_anchors_us.push(micros(changed.anchor_at));
            columns.intervals_ms.push(first.interval.map(millis));
        }
        columns
    }

    pub(crate) fn params<'b>(&'b self, actor: &'b Option<&'b str>) -> [(&'b (dyn ToSql + Sync), Type); 16] {
        [
            (&self.kinds, Type::TEXT_ARRAY),
            (&self.keys, Type::TEXT_ARRAY),
            (&self.cadences, Type::TEXT_ARRAY),
            (&self.payloads, Type::TEXT_ARRAY),
            (&self.misfires, Type::TEXT_ARRAY),
            (&self.queues, Type::TEXT_ARRAY),
            (&self.priorities, Type::INT4_ARRAY),
            (&self.max_attempts, Type::INT4_ARRAY),
            (&self.timeouts_ms, Type::INT8_ARRAY),
            (&self.metadata, Type::TEXT_ARRAY),
            (&self.first_us, Type::INT8_ARRAY),
            (&self.first_anchors_us, Type::INT8_ARRAY),
            (&self.changed_us, Type::INT8_ARRAY),
            (&self.changed_anchors_us, Type::INT8_ARRAY),
            (&self.intervals_ms, Type::INT8_ARRAY),
            (actor, Type::TEXT),
        ]
    }
}
