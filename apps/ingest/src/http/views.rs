//! What the API and `-o json` show.

use pitwheel_server::views::time;
use serde::Serialize;
use utoipa::ToSchema;

use crate::ingest::IngestJob;
use crate::lane::Lane;
use crate::store::{LaneState, Version};

/// A job of the ingestion.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = IngestJob)]
pub struct JobView {
    id: i64,
    /// `csv_ingest`, `factor_ingest`, `emission_recalc` or `unit_sync`.
    kind: String,
    lane: Lane,
    /// The first job of its chain.
    pipeline: i64,
    /// The state of the job; null: it is no longer in the history.
    state: Option<&'static str>,
    /// How far it is, from 0 to 1.
    progress: Option<f32>,
    /// Rows, rate and time left.
    note: Option<String>,
    file_name: Option<String>,
    requested_by: String,
    requested_at: String,
    finished_at: Option<String>,
    /// Where its progress can be watched: server-sent events.
    events: String,
}

impl From<IngestJob> for JobView {
    fn from(IngestJob { sync, job }: IngestJob) -> JobView {
        JobView {
            id: sync.job_id,
            kind: sync.kind,
            lane: sync.lane,
            pipeline: sync.pipeline,
            state: job.as_ref().map(|job| job.state.as_str()),
            progress: job.as_ref().and_then(|job| job.progress),
            finished_at: job.as_ref().and_then(|job| job.finished_at).map(time),
            note: job.and_then(|job| job.note),
            file_name: sync.file_name,
            requested_by: sync.requested_by,
            requested_at: time(sync.requested_at),
            events: format!("/api/v1/events?jobs={}", sync.job_id),
        }
    }
}

/// A lane and its current version.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = IngestLaneState)]
pub struct LaneView {
    id: i64,
    lane: Lane,
    /// The current version; null: nothing was loaded yet.
    current_version: Option<i64>,
    rows: Option<i64>,
    rejected: Option<i64>,
    loaded_at: Option<String>,
    job_id: Option<i64>,
}

impl From<LaneState> for LaneView {
    fn from(state: LaneState) -> LaneView {
        let current = state.current.as_ref();
        LaneView {
            id: state.id,
            lane: state.lane,
            current_version: current.map(|version| version.id),
            rows: current.map(|version| version.rows),
            rejected: current.map(|version| version.rejected),
            loaded_at: current.and_then(|version| version.loaded_at).map(time),
            job_id: current.map(|version| version.job_id),
        }
    }
}

/// A version of the data of a lane.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = IngestVersion)]
pub struct VersionView {
    id: i64,
    lane_id: i64,
    lane: Lane,
    /// The job that loaded it.
    job_id: i64,
    /// `loading`, `loaded` or `failed`.
    state: String,
    is_current: bool,
    rows: i64,
    rejected: i64,
    started_at: String,
    loaded_at: Option<String>,
    /// Why it failed.
    error: Option<String>,
}

impl From<Version> for VersionView {
    fn from(version: Version) -> VersionView {
        VersionView {
            id: version.id,
            lane_id: version.lane_id,
            lane: version.lane,
            job_id: version.job_id,
            state: version.state,
            is_current: version.is_current,
            rows: version.rows,
            rejected: version.rejected,
            started_at: time(version.started_at),
            loaded_at: version.loaded_at.map(time),
            error: version.error,
        }
    }
}
