//! Claims as columns for `unnest`.

use tokio_postgres::Row;

use crate::job::claim::Claim;

#[derive(Default)]
pub(crate) struct ClaimColumns {
    pub(crate) ids: Vec<i64>,
    pub(crate) fences: Vec<i64>,
    pub(crate) holders: Vec<i64>,
}

impl ClaimColumns {
    pub(crate) fn new(claims: impl Iterator<Item = Claim>) -> ClaimColumns {
        let mut columns = ClaimColumns::default();
        claims.for_each(|claim| columns.push(claim));
        columns
    }

    pub(crate) fn push(&mut self, claim: Claim) {
        self.ids.push(claim.id);
        self.fences.push(claim.fence);
        self.holders.push(claim.holder);
    }
}

/// The claim in the first three columns of a row: id, fence and holder.
pub(crate) fn claim_of_row(row: &Row) -> Claim {
    Claim { id: row.get(0), fence: row.get(1), holder: row.get(2) }
}
