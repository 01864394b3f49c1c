//! Errors as gRPC statuses.

use pitwheel::Error;
use tonic::Status;

use crate::dispatch::reports::NotWritten;
use crate::problem::Problem;

/// The status for an error of the library. A function, because `From` cannot be implemented between types of two other crates.
pub(crate) fn status(error: Error) -> Status {
    Problem::from(error).into()
}

impl From<NotWritten> for Status {
    fn from(error: NotWritten) -> Status {
        match error {
            NotWritten::Stopping | NotWritten::Unsettled => Status::unavailable(error.to_string()),
            NotWritten::Failed(error) => Problem::from(&*error).into(),
        }
    }
}
