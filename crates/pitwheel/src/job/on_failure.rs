//! What becomes of the steps after one that failed.

use crate::error::Error;

/// What becomes of the steps after one that is dead or was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnFailure {
    /// They are skipped, and so is all that comes after them. The others run.
    #[default]
    Stop,
    /// They run like after a step that is done, and see the state of their parents.
    GoOn,
}

impl OnFailure {
    /// The name used in tables, the CLI and the API.
    pub fn as_str(self) -> &'static str {
        match self {
            OnFailure::Stop => "stop",
            OnFailure::GoOn => "go_on",
        }
    }
}

impl std::str::FromStr for OnFailure {
    type Err = Error;

    fn from_str(word: &str) -> Result<OnFailure, Error> {
        let found = [OnFailure::Stop, OnFailure::GoOn].into_iter().find(|one| one.as_str() == word);
        found.ok_or_else(|| Error::Invalid(format!("on_failure `{word}` is not one of stop, go_on")))
    }
}
