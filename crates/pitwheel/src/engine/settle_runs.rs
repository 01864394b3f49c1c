//! Writing the endings of runs of recurring jobs: with each, when the recurring job runs next.

use tokio_postgres::types::Type;

use crate::engine::claim_columns::ClaimColumns;
use crate::engine::settle_columns::{Finish, Plans, PutBack, SettleResult, mark};
use crate::error::Error;
use crate::job::ending::{Ending, Settlement};
use crate::job::new_job::History;
use crate::postgres::{Ctid, Sql};

pub(crate) const FINISH_RUNS: &str = include_str!("../../sql/engine/finish_runs.sql");
const DONE_RUNS: &str = include_str!("../../sql/engine/done_runs.sql");
const PUT_BACK_RUNS: &str = include_str!("../../sql/engine/put_back_runs.sql");

/// Completes runs whose rows are where they were when they were claimed, and that have nothing else to write.
pub(super) async fn complete_runs(
    client: &impl Sql,
    batch: &[Settlement],
    which: &[usize],
    emptied: &[i64],
    results: &mut [SettleResult],
) -> Result<(), Error> {
    let claims = ClaimColumns::new(which.iter().map(|&at| batch[at].claim));
    let ctids: Vec<Option<Ctid>> = which.iter().map(|&at| batch[at].ending.ctid()).collect();
    let keeps = |ending: &Ending| matches!(ending, Ending::Done { history: History::All, .. });
    let histories: Vec<bool> = which.iter().map(|&at| keeps(&batch[at].ending)).collect();
    let mut plans = Plans::default();
    which.iter().for_each(|&at| plans.push(batch[at].plan.as_deref()));
    let params = [
        (&claims.ids as _, Type::INT8_ARRAY),
        (&claims.fences as _, Type::INT8_ARRAY),
        (&claims.holders as _, Type::INT8_ARRAY),
        (&ctids as _, Type::TID_ARRAY),
        (&emptied as _, Type::INT8_ARRAY),
        (&histories as _, Type::BOOL_ARRAY),
        (&plans.recurring as _, Type::INT8_ARRAY),
    ];
    let params: Vec<_> = params.into_iter().chain(plans.params()).collect();
    mark(&client.rows(DONE_RUNS, &params).await?, batch, which, results);
    Ok(())
}

pub(super) async fn finish_runs(
    client: &impl Sql,
    batch: &[Settlement],
    which: &[usize],
    emptied: &[i64],
    results: &mut [SettleResult],
) -> Result<(), Error> {
    let (mut columns, mut plans) = (Finish { emptied, ..Finish::default() }, Plans::default());
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
