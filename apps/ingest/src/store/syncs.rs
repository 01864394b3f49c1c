//! The jobs of the lanes.

use std::time::SystemTime;

use deadpool_postgres::{GenericClient, Transaction};
use pitwheel::transaction::tokio_postgres as engine;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::error::Error;
use crate::kinds::Load;
use crate::lane::{Lane, LaneFilter};
use crate::store::lanes;
use crate::store::statement::{execute, first, query};

/// What a job was asked to do.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SyncJob {
    /// The job.
    pub job_id: i64,
    /// The first job of its chain.
    pub pipeline: i64,
    /// Its kind.
    pub kind: String,
    /// Its lane.
    pub lane: Lane,
    /// The name of the uploaded file, as its sender called it.
    pub file_name: Option<String>,
    /// Who asked for it.
    pub requested_by: String,
    /// When it was asked for.
    pub requested_at: SystemTime,
}

impl SyncJob {
    fn read(row: &Row) -> Result<SyncJob, Error> {
        Ok(SyncJob {
            job_id: row.get("job_id"),
            pipeline: row.get("pipeline"),
            kind: row.get("kind"),
            lane: Lane::read(row)?,
            file_name: row.get("file_name"),
            requested_by: row.get("requested_by"),
            requested_at: row.get("requested_at"),
        })
    }
}

/// Enqueues a job in the transaction, and notes what it was asked to do. Returns its id.
pub(crate) async fn add(
    transaction: &Transaction<'_>,
    load: &Load,
    file_name: Option<&str>,
) -> Result<i64, Error> {
    let lane_id = lanes::find_or_add(transaction, &load.lane).await?;
    let enqueued = engine::enqueue(transaction, [load.job()?]).await?;
    let id =
        enqueued.first().map(|one| one.id).ok_or_else(|| Error::Invalid("no job was enqueued".into()))?;
    let params: [&(dyn ToSql + Sync); 6] =
        [&id, &lane_id, &load.pipeline, &load.kind(), &file_name, &load.requested_by];
    execute(transaction, include_str!("../../sql/add_sync.sql"), &params).await?;
    Ok(id)
}

pub(crate) async fn get(client: &impl GenericClient, job_id: i64) -> Result<SyncJob, Error> {
    let row = first(client, include_str!("../../sql/sync.sql"), &[&job_id]).await?;
    SyncJob::read(&row.ok_or_else(|| Error::NotFound(format!("job {job_id} of the ingestion")))?)
}

pub(crate) async fn list(
    client: &impl GenericClient,
    filter: &LaneFilter,
    before: i64,
    limit: i64,
) -> Result<Vec<SyncJob>, Error> {
    let (target, method) =
        (filter.target.map(|target| target.as_str()), filter.method.map(|method| method.as_str()));
    let params: [&(dyn ToSql + Sync); 7] =
        [&before, &limit, &filter.module, &filter.entry_type, &target, &method, &filter.year];
    let rows = query(client, include_str!("../../sql/syncs.sql"), &params).await?;
    rows.iter().map(SyncJob::read).collect()
}

/// The entry types and years of a module that have current entries.
pub(crate) async fn entry_types(
    client: &impl GenericClient,
    lane: &Lane,
    limit: i64,
) -> Result<Vec<(Option<String>, Option<i16>)>, Error> {
    let sql = include_str!("../../sql/entry_types.sql");
    let rows = query(client, sql, &[&lane.module, &lane.year, &limit]).await?;
    Ok(rows.iter().map(|row| (row.get("entry_type"), row.get("year"))).collect())
}

/// Deletes what was requested long ago.
pub(crate) async fn prune(client: &impl GenericClient) -> Result<u64, Error> {
    execute(client, include_str!("../../sql/prune_syncs.sql"), &[]).await
}
