//! Values that are strings in Rust and enumerations in the OpenAPI document.

#![allow(dead_code, reason = "only the OpenAPI document uses the variants")]

use utoipa::ToSchema;

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
