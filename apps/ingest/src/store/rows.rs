//! The rows of a version.

use bytes::Bytes;
use deadpool_postgres::{GenericClient, Object, Transaction};
use futures_util::SinkExt;

use crate::csv::Rejected;
use crate::error::Error;
use crate::lane::{Dataset, Lane};
use crate::store::statement::{execute, first, query};
use crate::store::versions;

/// Rows that one statement deletes.
const DELETE_ROWS: i64 = 20_000;

/// A row of a file that was not loaded.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RejectedRow {
    /// Its line in the file.
    pub line: i64,
    /// The column; `None`: the row as a whole.
    pub column: Option<String>,
    /// What is wrong.
    pub reason: String,
    /// The row, as CSV.
    pub record: String,
}

/// Writes a batch in a transaction of its own. The bytes are in memory: nothing else is waited for meanwhile. False: the version was
/// dropped, and nothing was written.
pub(crate) async fn add_batch(
    client: &mut Object,
    (version, dataset): (i64, Dataset),
    rows: Bytes,
    rejected: &[Rejected],
) -> Result<bool, Error> {
    let transaction = client.transaction().await?;
    if !versions::lock(&transaction, version).await? {
        return Ok(false);
    }
    if !rejected.is_empty() {
        add_rejected(&transaction, version, rejected).await?;
    }
    if !rows.is_empty() {
        copy(&transaction, dataset, rows).await?;
    }
    transaction.commit().await?;
    Ok(true)
}

async fn copy(transaction: &Transaction<'_>, dataset: Dataset, rows: Bytes) -> Result<(), Error> {
    let sql = match dataset {
        Dataset::Entries => include_str!("../../sql/copy_entries.sql"),
        Dataset::Factors => include_str!("../../sql/copy_factors.sql"),
        Dataset::Units => include_str!("../../sql/copy_units.sql"),
        Dataset::Emissions => return Err(Error::Invalid("emissions are computed, not loaded".into())),
    };
    let statement = transaction.prepare_cached(sql).await?;
    let mut sink = std::pin::pin!(transaction.copy_in::<_, Bytes>(&statement).await?);
    sink.send(rows).await?;
    sink.finish().await?;
    Ok(())
}

async fn add_rejected(client: &impl GenericClient, version: i64, rejected: &[Rejected]) -> Result<(), Error> {
    let lines: Vec<i64> = rejected.iter().map(|row| i64::try_from(row.line).unwrap_or(i64::MAX)).collect();
    let columns: Vec<Option<&str>> = rejected.iter().map(|row| row.column).collect();
    let reasons: Vec<&str> = rejected.iter().map(|row| &*row.reason).collect();
    let records: Vec<&str> = rejected.iter().map(|row| &*row.record).collect();
    let sql = include_str!("../../sql/add_rejected.sql");
    execute(client, sql, &[&version, &lines, &columns, &reasons, &records]).await.map(drop)
}

pub(crate) async fn rejected(
    client: &impl GenericClient,
    version: i64,
    after: i64,
    limit: i64,
) -> Result<Vec<RejectedRow>, Error> {
    let rows = query(client, include_str!("../../sql/rejected.sql"), &[&version, &after, &limit]).await?;
    let read = |row: &tokio_postgres::Row| RejectedRow {
        line: row.get("line"),
        column: row.get("column_name"),
        reason: row.get("reason"),
        record: row.get("record"),
    };
    Ok(rows.iter().map(read).collect())
}

/// Rows as JSON text, with their lines.
pub(crate) async fn list(
    client: &impl GenericClient,
    (version, dataset): (i64, Dataset),
    after: i64,
    limit: i64,
) -> Result<Vec<(i64, String)>, Error> {
    let sql = match dataset {
        Dataset::Entries => include_str!("../../sql/entries.sql"),
        Dataset::Factors => include_str!("../../sql/factors.sql"),
        Dataset::Units => include_str!("../../sql/units.sql"),
        Dataset::Emissions => include_str!("../../sql/emissions.sql"),
    };
    let rows = query(client, sql, &[&version, &after, &limit]).await?;
    Ok(rows.iter().map(|row| (row.get("line"), row.get("data"))).collect())
}

/// Two lines of a version that say something about the same thing.
pub(crate) async fn duplicate(
    client: &impl GenericClient,
    dataset: Dataset,
    version: i64,
) -> Result<Option<(i64, i64, String)>, Error> {
    let sql = match dataset {
        Dataset::Factors => include_str!("../../sql/duplicate_factors.sql"),
        Dataset::Units => include_str!("../../sql/duplicate_units.sql"),
        Dataset::Entries | Dataset::Emissions => return Ok(None),
    };
    let row = first(client, sql, &[&version]).await?;
    Ok(row.map(|row| (row.get("first"), row.get("last"), row.get("what"))))
}

/// Computes the emissions of the current entries of a lane as rows of a version. Returns the rows, and those without a factor; `None`:
/// the version was dropped, and nothing was written.
pub(crate) async fn compute_emissions(
    client: &mut Object,
    version: i64,
    lane: &Lane,
) -> Result<Option<(i64, i64)>, Error> {
    let transaction = client.transaction().await?;
    if !versions::lock(&transaction, version).await? {
        return Ok(None);
    }
    let sql = include_str!("../../sql/compute_emissions.sql");
    let row = first(&transaction, sql, &[&version, &lane.module, &lane.entry_type, &lane.year]).await?;
    transaction.commit().await?;
    Ok(row.map(|row| (row.get("rows"), row.get("without_factor"))))
}

/// Deletes the data of a version, some rows at a time.
pub(crate) async fn delete_data(client: &impl GenericClient, version: i64) -> Result<(), Error> {
    let statements = [
        include_str!("../../sql/delete_entries.sql"),
        include_str!("../../sql/delete_factors.sql"),
        include_str!("../../sql/delete_units.sql"),
        include_str!("../../sql/delete_emissions.sql"),
    ];
    for sql in statements {
        while execute(client, sql, &[&version, &DELETE_ROWS]).await? > 0 {}
    }
    Ok(())
}

/// Deletes the rejected rows of a version.
pub(crate) async fn delete_rejected(client: &impl GenericClient, version: i64) -> Result<(), Error> {
    while execute(client, include_str!("../../sql/delete_rejected.sql"), &[&version, &DELETE_ROWS]).await? > 0
    {
    }
    Ok(())
}
