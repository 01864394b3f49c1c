//! Statements that are prepared once for each connection.

use deadpool_postgres::GenericClient;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::error::Error;

type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

pub(super) async fn query(
    client: &impl GenericClient,
    sql: &str,
    params: Params<'_>,
) -> Result<Vec<Row>, Error> {
    let statement = client.prepare_cached(sql).await?;
    Ok(client.query(&statement, params).await?)
}

/// The first row.
pub(super) async fn first(
    client: &impl GenericClient,
    sql: &str,
    params: Params<'_>,
) -> Result<Option<Row>, Error> {
    Ok(query(client, sql, params).await?.into_iter().next())
}

/// The number of rows that were changed.
pub(super) async fn execute(
    client: &impl GenericClient,
    sql: &str,
    params: Params<'_>,
) -> Result<u64, Error> {
    let statement = client.prepare_cached(sql).await?;
    Ok(client.execute(&statement, params).await?)
}
