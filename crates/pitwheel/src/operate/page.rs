//! Pages of a list.

use crate::error::Error;

/// Rows per page at the most.
const PAGE_MAX: usize = 1000;

/// Where a page begins, and how long it is.
pub(crate) fn page(before: Option<i64>, limit: usize) -> Result<(i64, i64), Error> {
    if limit > PAGE_MAX {
        return Err(Error::Invalid(format!(
            "limit {limit} is above {PAGE_MAX}: ask for the next page with `before`"
        )));
    }
    Ok((before.unwrap_or(i64::MAX), if limit == 0 { 50 } else { limit as i64 }))
}
