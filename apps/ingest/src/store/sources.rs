//! Where the method `api` reads.

use deadpool_postgres::GenericClient;

use crate::error::Error;
use crate::lane::Lane;
use crate::store::lanes;
use crate::store::statement::{execute, first, query};

/// Where the data of a lane is read.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Source {
    /// The lane.
    pub lane: Lane,
    /// A URL or the path of a file.
    pub location: String,
}

pub(crate) async fn set(client: &impl GenericClient, lane: &Lane, location: &str) -> Result<(), Error> {
    let lane_id = lanes::find_or_add(client, lane).await?;
    execute(client, include_str!("../../sql/set_source.sql"), &[&lane_id, &location]).await.map(drop)
}

/// The location for a lane.
pub(crate) async fn get(client: &impl GenericClient, lane_id: i64) -> Result<Option<String>, Error> {
    let row = first(client, include_str!("../../sql/source.sql"), &[&lane_id]).await?;
    Ok(row.map(|row| row.get("location")))
}

/// Removes the source of a lane. False: it had none.
pub(crate) async fn remove(client: &impl GenericClient, lane: &Lane) -> Result<bool, Error> {
    let Some(lane_id) = lanes::find(client, lane).await? else { return Ok(false) };
    Ok(first(client, include_str!("../../sql/remove_source.sql"), &[&lane_id]).await?.is_some())
}

pub(crate) async fn list(client: &impl GenericClient, limit: i64) -> Result<Vec<Source>, Error> {
    let rows = query(client, include_str!("../../sql/sources.sql"), &[&limit]).await?;
    rows.iter().map(|row| Ok(Source { lane: Lane::read(row)?, location: row.get("location") })).collect()
}

/// The lanes whose sources have factors for these entries.
pub(crate) async fn of_factors(
    client: &impl GenericClient,
    lane: &Lane,
    limit: i64,
) -> Result<Vec<Lane>, Error> {
    let sql = include_str!("../../sql/factor_sources.sql");
    let rows = query(client, sql, &[&lane.module, &lane.entry_type, &lane.year, &limit]).await?;
    rows.iter().map(Lane::read).collect()
}
