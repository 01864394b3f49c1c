//! Pages of a list.

use crate::error::Error;

/// The maximum number of rows per page.
const PAGE_MAX: usize = 1000;

/// The id below which a page begins, and its number of rows.
pub(crate) fn page(before: Option<i64>, limit: usize) -> Result<(i64, i64), Error> {
    if limit > PAGE_MAX {
        return Err(Error::Invalid(format!(
            "limit {limit} is above {PAGE_MAX}: ask for the next page with `before`"
        )));
    }
    Ok((before.unwrap_or(i64::MAX), if limit == 0 { 50 } else { limit as i64 }))
}
