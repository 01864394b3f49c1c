//! The followers of one job: how many there may be, and how large.

use crate::error::Error;
use crate::job::limits::{FOLLOWERS_BYTES_MAX, FOLLOWERS_MAX};
use crate::job::new_job::NewJob;

/// Checks the followers of one job: their number, their size, and each of them.
pub fn check_followers(then: &[NewJob]) -> Result<(), Error> {
    if then.len() > FOLLOWERS_MAX {
        return Err(Error::Invalid(format!(
            "{} jobs follow from one, the limit is {FOLLOWERS_MAX}: enqueue one that enqueues the others",
            then.len()
        )));
    }
    let bytes: usize = then.iter().map(NewJob::bytes).sum();
    if bytes > FOLLOWERS_BYTES_MAX {
        return Err(Error::Invalid(format!(
            "the followers have {bytes} bytes, the limit is {FOLLOWERS_BYTES_MAX}: store large payloads elsewhere and enqueue \
             references"
        )));
    }
    then.iter().try_for_each(NewJob::check)
}
