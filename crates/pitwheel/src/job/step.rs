//! A step of a pipeline: its state, and what its handler learns about the steps before it.

use serde::de::DeserializeOwned;

use crate::error::Error;

/// The state of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StepState {
    /// Steps that it comes after have not ended.
    Waiting,
    /// It is a live job, which waits or runs.
    Live,
    /// Its job is done.
    Done,
    /// Its job is dead.
    Dead,
    /// Its job was cancelled or deleted, or the pipeline was cancelled before it had one.
    Cancelled,
    /// It does not run, because a step before it failed.
    Skipped,
}

impl StepState {
    /// All states, in the order of a step's life.
    pub const ALL: [StepState; 6] = [
        StepState::Waiting,
        StepState::Live,
        StepState::Done,
        StepState::Dead,
        StepState::Cancelled,
        StepState::Skipped,
    ];

    /// The name used in tables, the CLI and the API.
    pub fn as_str(self) -> &'static str {
        match self {
            StepState::Waiting => "waiting",
            StepState::Live => "live",
            StepState::Done => "done",
            StepState::Dead => "dead",
            StepState::Cancelled => "cancelled",
            StepState::Skipped => "skipped",
        }
    }
}

impl std::str::FromStr for StepState {
    type Err = Error;

    fn from_str(word: &str) -> Result<StepState, Error> {
        let found = StepState::ALL.into_iter().find(|state| state.as_str() == word);
        found.ok_or_else(|| Error::Invalid(format!("`{word}` is not the state of a step")))
    }
}

/// The step that a job is, as it was when the job was claimed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CurrentStep {
    /// The id of the pipeline.
    pub pipeline: i64,
    /// The name of the step.
    pub name: String,
    /// The steps that it comes after, in the order of the pipeline.
    pub parents: Vec<ParentStep>,
}

/// A step that another one comes after.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParentStep {
    /// Its name.
    pub name: String,
    /// How it ended.
    pub state: StepState,
    /// Its result, as JSON text. `None`: it has none, or it was left out.
    pub result: Option<String>,
    /// The result was left out, because the results of the parents have more than 1 MiB: read it from its job.
    pub result_left_out: bool,
}

/// What the view `step_context` has of a step: pipeline, name, and of each parent the name, state, result and whether that was left out.
type Context = (i64, String, Vec<(String, String, Option<String>, bool)>);

impl CurrentStep {
    /// What a claim read about a step.
    pub(crate) fn parse(context: &str) -> Option<Box<CurrentStep>> {
        let (pipeline, name, parents): Context = serde_json::from_str(context).ok()?;
        let parents = parents.into_iter().map(|(name, state, result, result_left_out)| {
            Some(ParentStep { name, state: state.parse().ok()?, result, result_left_out })
        });
        Some(Box::new(CurrentStep { pipeline, name, parents: parents.collect::<Option<Vec<_>>>()? }))
    }

    /// The parent with this name.
    pub fn parent(&self, name: &str) -> Option<&ParentStep> {
        self.parents.iter().find(|parent| parent.name == name)
    }
}

impl ParentStep {
    /// Its result as a type of yours; `None` when there is none or it does not fit the type.
    pub fn result<T: DeserializeOwned>(&self) -> Option<T> {
        self.result.as_deref().and_then(|json| serde_json::from_str(json).ok())
    }
}
