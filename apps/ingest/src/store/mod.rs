//! The schema `ingest`: one function for each statement in `sql/`, and the transactions around them.

pub(crate) mod lanes;
pub(crate) mod rows;
mod schema;
pub(crate) mod sources;
mod statement;
pub(crate) mod swap;
pub(crate) mod syncs;
pub(crate) mod versions;

pub use self::lanes::{CurrentVersion, LaneState};
pub use self::rows::RejectedRow;
pub(crate) use self::schema::SCHEMA;
pub use self::sources::Source;
pub use self::syncs::SyncJob;
pub use self::versions::Version;
