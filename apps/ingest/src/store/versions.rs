//! Versions of the data of a lane: one for each attempt of a job.

use std::time::SystemTime;

use deadpool_postgres::{GenericClient, Object, Transaction};
use pitwheel::Claim;
use tokio_postgres::Row;

use crate::error::Error;
use crate::lane::Lane;
use crate::store::lanes;
use crate::store::statement::{execute, first, query};

/// A version of the data of a lane.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Version {
    /// Its id.
    pub id: i64,
    /// The id of its lane.
    pub lane_id: i64,
    /// Its lane.
    pub lane: Lane,
    /// The job that loaded it.
    pub job_id: i64,
    /// `loading`, `loaded` or `failed`.
    pub state: String,
    /// Whether it is the current one of its lane.
    pub is_current: bool,
    /// Its rows.
    pub rows: i64,
    /// Rows of the file that were rejected.
    pub rejected: i64,
    /// When the attempt began.
    pub started_at: SystemTime,
    /// When it was loaded.
    pub loaded_at: Option<SystemTime>,
    /// Why it failed.
    pub error: Option<String>,
}

impl Version {
    fn read(row: &Row) -> Result<Version, Error> {
        Ok(Version {
            id: row.get("id"),
            lane_id: row.get("lane_id"),
            lane: Lane::read(row)?,
            job_id: row.get("job_id"),
            state: row.get("state"),
            is_current: row.get("is_current"),
            rows: row.get("rows"),
            rejected: row.get("rejected"),
            started_at: row.get("started_at"),
            loaded_at: row.get("loaded_at"),
            error: row.get("error"),
        })
    }

    /// Whether it has data.
    pub fn is_loaded(&self) -> bool {
        self.state == "loaded"
    }
}

/// Begins to load. What earlier attempts of the job left behind is to be deleted: they have lost their claims.
pub(crate) async fn begin(client: &impl GenericClient, lane_id: i64, claim: Claim) -> Result<i64, Error> {
    execute(client, include_str!("../../sql/drop_attempts.sql"), &[&claim.id, &claim.fence]).await?;
    let row =
        first(client, include_str!("../../sql/begin_version.sql"), &[&lane_id, &claim.id, &claim.fence])
            .await?;
    row.map(|row| row.get("id")).ok_or_else(|| Error::Invalid("the version was not inserted".into()))
}

/// Locks a version that is being loaded until the transaction ends. False: it was dropped.
pub(crate) async fn lock(transaction: &Transaction<'_>, id: i64) -> Result<bool, Error> {
    Ok(first(transaction, include_str!("../../sql/lock_version.sql"), &[&id]).await?.is_some())
}

/// Everything is loaded. False: another attempt of the job began meanwhile.
pub(crate) async fn finish(
    transaction: &Transaction<'_>,
    id: i64,
    rows: i64,
    rejected: i64,
) -> Result<bool, Error> {
    let row =
        first(transaction, include_str!("../../sql/finish_version.sql"), &[&id, &rows, &rejected]).await?;
    Ok(row.is_some())
}

/// The data cannot be loaded; its rejected rows are kept.
pub(crate) async fn fail(
    client: &impl GenericClient,
    id: i64,
    error: &str,
    rejected: i64,
) -> Result<(), Error> {
    execute(client, include_str!("../../sql/fail_version.sql"), &[&id, &error, &rejected]).await.map(drop)
}

/// One version.
pub(crate) async fn get(client: &impl GenericClient, id: i64) -> Result<Version, Error> {
    let row = first(client, include_str!("../../sql/version.sql"), &[&id]).await?;
    let row = row.ok_or_else(|| Error::NotFound(format!("version {id}, or it was deleted")))?;
    Version::read(&row)
}

/// The last attempt of a job.
pub(crate) async fn of_job(client: &impl GenericClient, job_id: i64) -> Result<Option<i64>, Error> {
    let row = first(client, include_str!("../../sql/version_of_job.sql"), &[&job_id]).await?;
    Ok(row.map(|row| row.get("id")))
}

pub(crate) async fn list(
    client: &impl GenericClient,
    lane_id: i64,
    before: i64,
    limit: i64,
) -> Result<Vec<Version>, Error> {
    let rows = query(client, include_str!("../../sql/versions.sql"), &[&lane_id, &before, &limit]).await?;
    rows.iter().map(Version::read).collect()
}

/// Makes a loaded version the current one of its lane again.
pub(crate) async fn promote(client: &mut Object, id: i64) -> Result<Version, Error> {
    let transaction = client.transaction().await?;
    let version = get(&transaction, id).await?;
    // The lane first: what was read before may have changed.
    lanes::lock(&transaction, version.lane_id).await?;
    if !lanes::make_current(&transaction, version.lane_id, id).await? {
        let problem = format!("version {id} cannot be current: it is not loaded, or was deleted");
        return Err(Error::Invalid(problem));
    }
    transaction.commit().await?;
    get(&*client, id).await
}

/// Versions beyond the newest `keep` that were loaded for each lane, and old failures: id and lane.
pub(crate) async fn superseded(
    client: &impl GenericClient,
    keep: i64,
    limit: i64,
) -> Result<Vec<(i64, i64)>, Error> {
    let rows = query(client, include_str!("../../sql/superseded.sql"), &[&keep, &limit]).await?;
    Ok(rows.iter().map(|row| (row.get("id"), row.get("lane_id"))).collect())
}

/// A version is to be deleted. False: it is current.
pub(crate) async fn drop_superseded(client: &mut Object, id: i64, lane_id: i64) -> Result<bool, Error> {
    let transaction = client.transaction().await?;
    lanes::lock(&transaction, lane_id).await?;
    let dropped = first(&transaction, include_str!("../../sql/drop_version.sql"), &[&lane_id, &id]).await?;
    transaction.commit().await?;
    Ok(dropped.is_some())
}

/// Versions that are being loaded, or were left behind: id, job and fence.
pub(crate) async fn loading(
    client: &impl GenericClient,
    limit: i64,
    after: i64,
) -> Result<Vec<(i64, i64, i64)>, Error> {
    let rows = query(client, include_str!("../../sql/loading.sql"), &[&limit, &after]).await?;
    Ok(rows.iter().map(|row| (row.get("id"), row.get("job_id"), row.get("fence"))).collect())
}

/// A version that no job loads any more is to be deleted.
pub(crate) async fn drop_loading(client: &impl GenericClient, id: i64) -> Result<(), Error> {
    execute(client, include_str!("../../sql/drop_loading.sql"), &[&id]).await.map(drop)
}

/// Versions whose rows are to be deleted.
pub(crate) async fn dropped(client: &impl GenericClient, limit: i64) -> Result<Vec<i64>, Error> {
    let rows = query(client, include_str!("../../sql/dropped.sql"), &[&limit]).await?;
    Ok(rows.iter().map(|row| row.get("id")).collect())
}

/// Removes a dropped version that has no rows any more.
pub(crate) async fn remove(client: &impl GenericClient, id: i64) -> Result<(), Error> {
    execute(client, include_str!("../../sql/remove_version.sql"), &[&id]).await.map(drop)
}
