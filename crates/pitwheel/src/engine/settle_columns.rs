//! The parameters of the statements that write endings, as columns for `unnest`.

use tokio_postgres::types::{ToSql, Type};

use crate::engine::batcher::Weight;
use crate::engine::claim_columns::{ClaimColumns, claim_of_row};
use crate::engine::enqueue::{Columns, micros, millis};
use crate::job::claim::Claim;
use crate::job::ending::{Ending, Settlement};
use crate::job::limits::BYTES_PER_ENDING;
use crate::job::new_job::History;
use crate::job::recurrence::Plan;

/// What became of one ending of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettleResult {
    /// It was written.
    Written,
    /// The claim had ended before, by a write of its own worker: this ending is repeated, or the handler settled the job in a
    /// transaction of its own. Nothing was written now. Known from the history, for a day; otherwise it is `Lost`. A completion is
    /// `Already` only if the job was completed then.
    Already,
    /// The claim is gone: swept, claimed again, or settled before. Nothing was written.
    Lost,
    /// Another transaction has locked the row, or the server has a fault that concerns it. It is not waited for, so nothing was written,
    /// and the caller must come back to it.
    Locked,
    /// Postgres refuses this ending, for this reason. Nothing was written, and the claim still holds: it can end in another way.
    Refused(String),
}

/// The parameters of finish.sql, as columns.
#[derive(Default)]
pub(crate) struct Finish<'a> {
    pub(crate) claims: ClaimColumns,
    pub(crate) states: Vec<Option<&'static str>>,
    pub(crate) errors: Vec<Option<&'a str>>,
    pub(crate) results: Vec<Option<&'a str>>,
    pub(crate) emptied: &'a [i64],
    /// The claim whose job each follower follows.
    pub(crate) followed: ClaimColumns,
    pub(crate) followers: Columns<'a>,
    /// The ending lets the job wait again, and finishes it only if a cancel was requested.
    pub(crate) if_cancelled: Vec<bool>,
}

impl<'a> Finish<'a> {
    pub(crate) fn push(&mut self, claim: Claim, ending: &'a Ending) {
        let (state, error, result) = match ending {
            Ending::Done { history, result, .. } => {
                let state = if result.is_some() || *history == History::All { Some("done") } else { None };
                (state, None, result.as_deref())
            }
            Ending::Dead { error, .. } => (Some("dead"), Some(error), None),
            Ending::Cancelled { error, .. } => (Some("cancelled"), error.as_ref(), None),
            // It was not put back, because a cancel was requested.
            Ending::Retry { error, .. } | Ending::Crash { error } => (Some("cancelled"), Some(error), None),
            Ending::Snooze { .. } | Ending::Release => (Some("cancelled"), None, None),
        };
        self.claims.push(claim);
        self.states.push(state);
        self.errors.push(error.map(String::as_str));
        self.results.push(result);
        self.if_cancelled.push(ending.waits_again());
        for follower in ending.then() {
            self.followed.push(claim);
            self.followers.push(follower);
        }
    }

    /// The parameters of finish.sql in their order, each with its type.
    pub(crate) fn all_params(&self) -> Vec<(&(dyn ToSql + Sync), Type)> {
        let steps: (&(dyn ToSql + Sync), Type) = (&self.followers.steps, Type::TEXT_ARRAY);
        self.params().into_iter().chain([steps]).collect()
    }

    /// The parameters that finish.sql and finish_runs.sql share, in their order, each with its type.
    pub(crate) fn params(&self) -> [(&(dyn ToSql + Sync), Type); 23] {
        let followers = &self.followers;
        [
            (&self.claims.ids, Type::INT8_ARRAY),
            (&self.claims.fences, Type::INT8_ARRAY),
            (&self.states, Type::TEXT_ARRAY),
            (&self.errors, Type::TEXT_ARRAY),
            (&self.results, Type::TEXT_ARRAY),
            (&self.emptied, Type::INT8_ARRAY),
            (&self.followed.ids, Type::INT8_ARRAY),
            (&self.followed.fences, Type::INT8_ARRAY),
            (&followers.kinds, Type::TEXT_ARRAY),
            (&followers.payloads, Type::TEXT_ARRAY),
            (&followers.queues, Type::TEXT_ARRAY),
            (&followers.delays_ms, Type::INT8_ARRAY),
            (&followers.run_ats_us, Type::INT8_ARRAY),
            (&followers.priorities, Type::INT2_ARRAY),
            (&followers.max_attempts, Type::INT4_ARRAY),
            (&followers.timeouts_ms, Type::INT8_ARRAY),
            (&followers.metadata, Type::TEXT_ARRAY),
            (&followers.keys, Type::TEXT_ARRAY),
            (&self.if_cancelled, Type::BOOL_ARRAY),
            (&self.claims.holders, Type::INT8_ARRAY),
            (&self.followed.holders, Type::INT8_ARRAY),
            (&followers.lanes, Type::TEXT_ARRAY),
            (&followers.lane_passes, Type::BOOL_ARRAY),
        ]
    }
}

/// The parameters of put_back.sql, as columns.
#[derive(Default)]
pub(crate) struct PutBack<'a> {
    claims: ClaimColumns,
    delays: Vec<i64>,
    uncharged: Vec<bool>,
    crashed: Vec<bool>,
    errors: Vec<Option<&'a str>>,
}

impl<'a> PutBack<'a> {
    pub(crate) fn push(&mut self, claim: Claim, ending: &'a Ending) {
        let (delay, error) = match ending {
            Ending::Retry { delay, error } => (millis(*delay), Some(error)),
            Ending::Snooze { delay } => (millis(*delay), None),
            Ending::Crash { error } => (0, Some(error)),
            _ => (0, None),
        };
        self.claims.push(claim);
        self.delays.push(delay);
        self.uncharged.push(!matches!(ending, Ending::Retry { .. }));
        self.crashed.push(matches!(ending, Ending::Crash { .. }));
        self.errors.push(error.map(String::as_str));
    }

    /// The parameters in the order of the statement, each with its type.
    pub(crate) fn params(&self) -> [(&(dyn ToSql + Sync), Type); 7] {
        [
            (&self.claims.ids, Type::INT8_ARRAY),
            (&self.claims.fences, Type::INT8_ARRAY),
            (&self.claims.holders, Type::INT8_ARRAY),
            (&self.delays, Type::INT8_ARRAY),
            (&self.uncharged, Type::BOOL_ARRAY),
            (&self.crashed, Type::BOOL_ARRAY),
            (&self.errors, Type::TEXT_ARRAY),
        ]
    }
}

/// The plans of runs, as columns; null where there is none.
#[derive(Default)]
pub(crate) struct Plans<'a> {
    pub(crate) versions: Vec<Option<i64>>,
    pub(crate) next_us: Vec<Option<i64>>,
    pub(crate) anchors_us: Vec<Option<i64>>,
    pub(crate) reasons: Vec<Option<&'a str>>,
    pub(crate) intervals_ms: Vec<Option<i64>>,
    pub(crate) skipped: Vec<Option<i64>>,
}

impl<'a> Plans<'a> {
    pub(crate) fn push(&mut self, plan: Option<&'a Plan>) {
        self.versions.push(plan.map(|plan| plan.version));
        self.next_us.push(plan.map(|plan| micros(plan.next_run_at)));
        self.anchors_us.push(plan.map(|plan| micros(plan.anchor_at)));
        self.reasons.push(plan.map(|plan| &*plan.reason));
        self.intervals_ms.push(plan.and_then(|plan| plan.interval).map(millis));
        self.skipped.push(plan.map(|plan| i64::try_from(plan.skipped).unwrap_or(i64::MAX)));
    }

    /// A recurring job that cannot be planned: it has a version and a reason, but no time.
    pub(crate) fn push_unplannable(&mut self, version: i64, reason: &'a str) {
        self.push(None);
        if let (Some(last_version), Some(last_reason)) = (self.versions.last_mut(), self.reasons.last_mut()) {
            (*last_version, *last_reason) = (Some(version), Some(reason));
        }
    }

    /// The parameters in the order of finish_runs.sql.
    pub(crate) fn params(&self) -> [(&(dyn ToSql + Sync), Type); 6] {
        [
            (&self.versions, Type::INT8_ARRAY),
            (&self.next_us, Type::INT8_ARRAY),
            (&self.anchors_us, Type::INT8_ARRAY),
            (&self.reasons, Type::TEXT_ARRAY),
            (&self.intervals_ms, Type::INT8_ARRAY),
            (&self.skipped, Type::INT8_ARRAY),
        ]
    }

    /// The parameters in the order of put_back_runs.sql.
    pub(crate) fn put_back_params(&self) -> [(&(dyn ToSql + Sync), Type); 5] {
        let [versions, next_us, anchors_us, reasons, _, skipped] = self.params();
        [next_us, anchors_us, reasons, skipped, versions]
    }
}

/// Marks the jobs as written whose ids the statement returned, as one array. `which` is sorted by id and has each job once.
pub(crate) fn mark_written(
    rows: &[tokio_postgres::Row],
    batch: &[Settlement],
    which: &[usize],
    results: &mut [SettleResult],
) {
    for id in rows.iter().filter_map(|row| row.get::<_, Option<Vec<i64>>>(0)).flatten() {
        if let Ok(found) = which.binary_search_by_key(&id, |&at| batch[at].claim.id) {
            results[which[found]] = SettleResult::Written;
        }
    }
}

/// Marks the claims that the statement returned as written, or as locked. `which` is sorted by id, so each is found by bisection. Fence and
/// holder tell claims of one job apart: a late holder's ending may be in one batch with that of the next holder.
pub(crate) fn mark(
    rows: &[tokio_postgres::Row],
    batch: &[Settlement],
    which: &[usize],
    results: &mut [SettleResult],
) {
    for row in rows {
        let claim = claim_of_row(row);
        let first = which.partition_point(|&at| batch[at].claim.id < claim.id);
        let same_job = which[first..].iter().take_while(|&&at| batch[at].claim.id == claim.id);
        if let Some(&at) = same_job.into_iter().find(|&&at| batch[at].claim.is_of(claim)) {
            let is_written: bool = row.get(3);
            results[at] = if is_written { SettleResult::Written } else { SettleResult::Locked };
        }
    }
}

/// An ending in a batch. It does not wait for others if something waits for it: the job itself, its followers, its next run, its lane
/// or its pipeline.
pub(crate) fn weigh(settlement: &Settlement) -> Weight {
    let Settlement { ending, plan, in_lane, .. } = settlement;
    let is_plain = ending.ctid().is_some() && ending.then().is_empty() && plan.is_none() && !in_lane;
    Weight { weight: 1 + ending.bytes() / BYTES_PER_ENDING, hurries: !is_plain }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::new_job::NewJob;
    use crate::postgres::Ctid;

    #[test]
    fn only_endings_that_nothing_waits_for_keep_the_pace() {
        let claim = Claim { id: 1, fence: 1, holder: 1 };
        let done = |ctid| Settlement::new(claim, Ending::done(History::All, ctid));
        let plain = done(Some(Ctid::default()));
        let then = vec![NewJob::raw("next", "{}")];
        let ending = Ending::Done { history: History::All, ctid: Some(Ctid::default()), result: None, then };
        assert!(!weigh(&plain).hurries);
        assert!(weigh(&done(None)).hurries, "a step");
        assert!(weigh(&Settlement { in_lane: true, ..plain }).hurries);
        let large = Ending::Done {
            history: History::All,
            ctid: None,
            result: Some("x".repeat(1 << 18)),
            then: vec![],
        };
        assert_eq!(weigh(&Settlement::new(claim, large)).weight, 17, "a batch has at most 16 MB of results");
        assert!(weigh(&Settlement::new(claim, ending)).hurries);
        assert!(weigh(&Settlement::release(claim)).hurries);
    }
}
