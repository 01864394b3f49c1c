//! Lanes and their current versions.

use std::time::SystemTime;

use deadpool_postgres::{GenericClient, Transaction};
use tokio_postgres::types::ToSql;

use crate::error::Error;
use crate::lane::{Lane, LaneFilter};
use crate::store::statement::{first, query};

/// A lane and its current version.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LaneState {
    /// Its id.
    pub id: i64,
    /// Its parts.
    pub lane: Lane,
    /// The current version; `None`: nothing was loaded yet.
    pub current: Option<CurrentVersion>,
}

/// The current version of a lane.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CurrentVersion {
    /// Its id.
    pub id: i64,
    /// The job that loaded it.
    pub job_id: i64,
    /// Its rows.
    pub rows: i64,
    /// Rows of the file that were rejected.
    pub rejected: i64,
    /// When it was loaded.
    pub loaded_at: Option<SystemTime>,
}

/// The id of the lane, which is added if there is none.
pub(crate) async fn find_or_add(client: &impl GenericClient, lane: &Lane) -> Result<i64, Error> {
    loop {
        if let Some(id) = find(client, lane).await? {
            return Ok(id);
        }
        let (target, method) = (lane.target.as_str(), lane.method.as_str());
        let params: [&(dyn ToSql + Sync); 5] = [&lane.module, &lane.entry_type, &target, &method, &lane.year];
        if let Some(row) = first(client, include_str!("../../sql/add_lane.sql"), &params).await? {
            return Ok(row.get("id"));
        }
        // Another transaction has added it meanwhile; lanes are never removed.
    }
}

/// The id of the lane.
pub(crate) async fn find(client: &impl GenericClient, lane: &Lane) -> Result<Option<i64>, Error> {
    let (target, method) = (lane.target.as_str(), lane.method.as_str());
    let params: [&(dyn ToSql + Sync); 5] = [&lane.module, &lane.entry_type, &target, &method, &lane.year];
    let row = first(client, include_str!("../../sql/lane_by_parts.sql"), &params).await?;
    Ok(row.map(|row| row.get("id")))
}

pub(crate) async fn list(
    client: &impl GenericClient,
    filter: &LaneFilter,
    after: i64,
    limit: i64,
) -> Result<Vec<LaneState>, Error> {
    let (target, method) =
        (filter.target.map(|target| target.as_str()), filter.method.map(|method| method.as_str()));
    let params: [&(dyn ToSql + Sync); 7] =
        [&after, &limit, &filter.module, &filter.entry_type, &target, &method, &filter.year];
    let rows = query(client, include_str!("../../sql/lanes.sql"), &params).await?;
    rows.iter()
        .map(|row| {
            let current = row.get::<_, Option<i64>>("current_version").map(|id| CurrentVersion {
                id,
                job_id: row.get("job_id"),
                rows: row.get("rows"),
                rejected: row.get("rejected"),
                loaded_at: row.get("loaded_at"),
            });
            Ok(LaneState { id: row.get("id"), lane: Lane::read(row)?, current })
        })
        .collect()
}

/// Locks a lane until the transaction ends.
pub(crate) async fn lock(transaction: &Transaction<'_>, lane_id: i64) -> Result<(), Error> {
    query(transaction, include_str!("../../sql/lock_lane.sql"), &[&lane_id]).await.map(drop)
}

/// A loaded version becomes the current one of a lane that is locked. False: it is not loaded, or was dropped.
pub(crate) async fn make_current(
    transaction: &Transaction<'_>,
    lane_id: i64,
    version: i64,
) -> Result<bool, Error> {
    let row = first(transaction, include_str!("../../sql/make_current.sql"), &[&lane_id, &version]).await?;
    Ok(row.is_some())
}
