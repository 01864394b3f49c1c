//! Writing the endings of runs of recurring jobs: with each, when the recurring job runs next.

use std::time::SystemTime;

use tokio_postgres::types::Type;

use crate::engine::claim_columns::ClaimColumns;
use crate::engine::enqueue::millis;
use crate::engine::settle_columns::{Finish, Plans, PutBack, SettleResult, mark, mark_written};
use crate::error::Error;
use crate::job::ending::{Ending, Settlement};
use crate::job::recurrence::Plan;
use crate::postgres::{Ctid, Params, Sql};

pub(crate) const FINISH_RUNS: &str = include_str!("../../sql/engine/finish_runs.sql");
const DONE_RUNS: &str = include_str!("../../sql/engine/done_runs.sql");
const PUT_BACK_RUNS: &str = include_str!("../../sql/engine/put_back_runs.sql");

/// Completes runs whose rows are where they were when they were claimed, that carry a state, and that have nothing else to write. `which`
/// is sorted by the id of the job.
pub(super) async fn complete_runs(
    client: &impl Sql,
    batch: &[Settlement],
    which: &[usize],
    emptied: &[i64],
    results: &mut [SettleResult],
) -> Result<(), Error> {
    let claims = ClaimColumns::new(which.iter().map(|&at| batch[at].claim));
    let ctids: Vec<Option<Ctid>> = which.iter().map(|&at| batch[at].ending.ctid()).collect();
    let mut plans = DonePlans::default();
    which.iter().for_each(|&at| plans.push(batch[at].plan.as_deref(), &batch[at].ending));
    let params: Params = &[
        (&claims.ids, Type::INT8_ARRAY),
        (&claims.fences, Type::INT8_ARRAY),
        (&claims.holders, Type::INT8_ARRAY),
        (&ctids, Type::TID_ARRAY),
        (&emptied, Type::INT8_ARRAY),
        (&plans.histories, Type::BOOL_ARRAY),
        (&plans.next_run_ats, Type::TIMESTAMPTZ_ARRAY),
        (&plans.anchors, Type::TIMESTAMPTZ_ARRAY),
        (&plans.intervals_ms, Type::INT8_ARRAY),
        (&plans.skipped, Type::INT8_ARRAY),
        (&plans.reason_at, Type::INT4_ARRAY),
        (&plans.reasons, Type::TEXT_ARRAY),
    ];
    mark_written(&client.rows(DONE_RUNS, params).await?, batch, which, results);
    Ok(())
}

/// The plans of runs that are done, as columns. Without nulls, so that Postgres finds a place in them without a walk.
#[derive(Default)]
struct DonePlans<'a> {
    histories: Vec<bool>,
    skipped: Vec<i64>,
    next_run_ats: Vec<SystemTime>,
    anchors: Vec<SystemTime>,
    /// 0: none.
    intervals_ms: Vec<i64>,
    /// The place of the reason, counted from 1: most runs of a batch have the same.
    reason_at: Vec<i32>,
    reasons: Vec<&'a str>,
}

impl<'a> DonePlans<'a> {
    fn push(&mut self, plan: Option<&'a Plan>, ending: &Ending) {
        let Some(plan) = plan else { return };
        self.histories.push(ending.keeps_history());
        self.skipped.push(i64::try_from(plan.skipped).unwrap_or(i64::MAX));
        self.next_run_ats.push(plan.next_run_at);
        self.anchors.push(plan.anchor_at);
        self.intervals_ms.push(plan.interval.map_or(0, millis));
        if self.reasons.last() != Some(&&*plan.reason) {
            self.reasons.push(&plan.reason);
        }
        self.reason_at.push(i32::try_from(self.reasons.len()).unwrap_or(i32::MAX));
    }
}

pub(super) async fn finish_runs(
    client: &impl Sql,
    batch: &[Settlement],
    which: &[usize],
    results: &mut [SettleResult],
) -> Result<(), Error> {
    let (mut columns, mut plans) = (Finish::default(), Plans::default());
    for &at in which {
        columns.push(batch[at].claim, &batch[at].ending);
        plans.push(batch[at].plan.as_deref());
    }
    let params: Vec<_> = columns.params().into_iter().chain(plans.params()).collect();
    mark(&client.rows(FINISH_RUNS, &params).await?, batch, which, results);
    Ok(())
}

pub(super) async fn put_back_runs(
    client: &impl Sql,
    batch: &[Settlement],
    which: &[usize],
    results: &mut [SettleResult],
) -> Result<(), Error> {
    let (mut columns, mut plans) = (PutBack::default(), Plans::default());
    for &at in which {
        columns.push(batch[at].claim, &batch[at].ending);
        plans.push(batch[at].plan.as_deref());
    }
    let params: Vec<_> = columns.params().into_iter().chain(plans.put_back_params()).collect();
    mark(&client.rows(PUT_BACK_RUNS, &params).await?, batch, which, results);
    Ok(())
}
