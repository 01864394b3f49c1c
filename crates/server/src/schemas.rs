//! Values that are strings in Rust and enumerations in the OpenAPI document.

#![allow(dead_code, reason = "only the OpenAPI document uses the variants")]

use utoipa::ToSchema;

// Fields include this one in their own schemas: applications may have schemas with its name.
/// A name: 1 to 63 letters, digits and `_ . : / -`, starting with a letter or digit.
#[derive(ToSchema)]
#[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,62}$")]
pub(crate) struct Name(String);

/// The state of a job.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
pub(crate) enum JobState {
    Waiting,
    Blocked,
    Running,
    Done,
    Dead,
    Cancelled,
}

/// The state of a worker.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
pub(crate) enum WorkerState {
    Alive,
    Quiet,
    Draining,
    Dead,
}

/// How a worker is connected: to Postgres (`direct`) or to a node (`grpc`).
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
pub(crate) enum Transport {
    Direct,
    Grpc,
}

/// A command to a worker.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
pub(crate) enum Order {
    Quiet,
    Drain,
    Resume,
}

/// What a token permits.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
pub(crate) enum Role {
    Viewer,
    Operator,
    Admin,
    Worker,
    Producer,
}

/// What becomes of planned times at which a recurring job could not run.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
pub(crate) enum Misfire {
    Skip,
    One,
    All,
}

/// What became of a request to run a recurring job now.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
pub(crate) enum RunNow {
    Due,
    Running,
}

/// What became of a change of one job.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
pub(crate) enum Outcome {
    Done,
    Requested,
    NotFound,
    KeyTaken,
}

/// The state of a pipeline.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
pub(crate) enum PipelineState {
    Running,
    Done,
    Failed,
    Cancelled,
}

/// The state of a step of a pipeline.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
pub(crate) enum StepState {
    Waiting,
    Live,
    Done,
    Dead,
    Cancelled,
    Skipped,
}

/// What becomes of the steps after one that failed.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
pub(crate) enum OnFailure {
    Stop,
    GoOn,
}

/// Where an event is.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
pub(crate) enum EventState {
    Waiting,
    Parked,
    Sent,
}

/// How relays share the events.
#[derive(ToSchema)]
#[schema(rename_all = "kebab-case")]
pub(crate) enum RelayStrategy {
    Shards,
    Advisory,
    RowLock,
}
