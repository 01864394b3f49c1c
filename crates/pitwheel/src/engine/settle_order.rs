//! The order in which the endings of a batch are written, and by which statements.

use crate::job::ending::{Ending, Settlement};
use crate::job::new_job::History;

/// The positions of the endings, sorted by id: batches that lock rows in one order cannot deadlock. Of several endings of one
/// claim only the first, because a report that was repeated before its answer came may be in one batch with itself; each of the
/// others is returned with that first one.
pub(super) fn in_order(batch: &[Settlement]) -> (Vec<usize>, Vec<(usize, usize)>) {
    let claim = |at: usize| batch[at].claim;
    let mut order: Vec<usize> = (0..batch.len()).collect();
    order.sort_by_key(|&at| (claim(at).id, claim(at).fence, claim(at).holder));
    let mut repeated = Vec::new();
    order.dedup_by(|next, first| {
        let is_repeated = claim(*first).is_of(claim(*next));
        if is_repeated {
            repeated.push((*next, *first));
        }
        is_repeated
    });
    (order, repeated)
}

/// The positions of endings, by the statement that writes them.
#[derive(Default)]
pub(super) struct ByStatement {
    pub(super) done: Vec<usize>,
    pub(super) forgotten: Vec<usize>,
    /// Jobs of lanes.
    pub(super) in_lanes: Vec<usize>,
    pub(super) finished: Vec<usize>,
    pub(super) back: Vec<usize>,
    /// Runs of recurring jobs, with a plan: those that are done, carry a state and have nothing else to write, and the others.
    pub(super) done_runs: Vec<usize>,
    pub(super) runs: Vec<usize>,
}

pub(super) fn by_statement(batch: &[Settlement], order: Vec<usize>) -> ByStatement {
    let mut sorted = ByStatement::default();
    for (n, &at) in order.iter().enumerate() {
        let Settlement { claim, ending, plan, in_lane, .. } = &batch[at];
        // The fast statements compare the holder, so it must be known. They return ids, which do not tell several claims of one job
        // apart, so they get one of these at most.
        let is_last = order.get(n + 1).is_none_or(|&next| batch[next].claim.id != claim.id);
        // The row of one whose last progress was written has moved.
        let has_moved = batch[at].kept_progress().is_some();
        let is_fast = is_last && !has_moved && claim.holder != 0 && ending.then().is_empty();
        let which = match ending {
            Ending::Done { ctid: Some(_), result: None, .. }
                if is_fast && plan.as_ref().is_some_and(|plan| plan.carried) =>
            {
                &mut sorted.done_runs
            }
            _ if plan.is_some() => &mut sorted.runs,
            Ending::Done { ctid: Some(_), result: None, history, .. } if is_fast => match history {
                _ if *in_lane => &mut sorted.in_lanes,
                History::All => &mut sorted.done,
                History::FailuresOnly => &mut sorted.forgotten,
            },
            Ending::Done { .. } | Ending::Dead { .. } | Ending::Cancelled { .. } => &mut sorted.finished,
            Ending::Retry { .. } | Ending::Snooze { .. } | Ending::Release | Ending::Crash { .. } => {
                &mut sorted.back
            }
        };
        which.push(at);
    }
    sorted
}
