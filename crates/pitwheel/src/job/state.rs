//! The state of a job.

use crate::error::Error;

/// The state of a job. Being due is a time, not a state: see `run_at`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// Not held by a worker: due now or later.
    Waiting,
    /// Behind another job of its lane.
    Blocked,
    /// Held by a worker.
    Running,
    /// Completed.
    Done,
    /// Buried: out of attempts, buried by its handler, or the cause of crashes.
    Dead,
    /// Cancelled.
    Cancelled,
}

impl State {
    /// All states, in the order of a job's life.
    pub const ALL: [State; 6] =
        [State::Waiting, State::Blocked, State::Running, State::Done, State::Dead, State::Cancelled];

    /// The name used in tables, the CLI and the API.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Waiting => "waiting",
            State::Blocked => "blocked",
            State::Running => "running",
            State::Done => "done",
            State::Dead => "dead",
            State::Cancelled => "cancelled",
        }
    }
}

impl std::str::FromStr for State {
    type Err = Error;

    fn from_str(word: &str) -> Result<State, Error> {
        let found = State::ALL.into_iter().find(|state| state.as_str() == word);
        found.ok_or_else(|| {
            Error::Invalid(format!(
                "state `{word}` is not one of waiting, blocked, running, done, dead, cancelled"
            ))
        })
    }
}
