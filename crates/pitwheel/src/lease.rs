//! A worker's lease: one row for all it holds, renewed by one small write.

use std::time::Duration;

use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::db;
use crate::enqueue::millis;
use crate::error::Error;
use crate::settle::{Claim, Settled};

/// Enters a worker incarnation; its id is the holder of what it claims.
pub async fn register(client: &Client, name: &str, lease: Duration) -> Result<i64, Error> {
    let params: db::Params = &[(&name, Type::TEXT), (&millis(lease), Type::INT8)];
    let row = client.query_typed(include_str!("../sql/register.sql"), params).await?;
    Ok(row[0].get(0))
}

/// Moves the lease on. `Lost`: the worker was declared dead, and what it holds is given to others.
pub async fn renew(client: &Client, worker: i64) -> Result<Settled, Error> {
    let rows = db::query(client, include_str!("../sql/renew.sql"), &[(&worker, Type::INT8)]).await?;
    Ok(if rows.is_empty() { Settled::Lost } else { Settled::Written })
}

/// Ends the incarnation of its own accord.
pub async fn retire(client: &Client, worker: i64) -> Result<(), Error> {
    client.execute_typed(include_str!("../sql/retire.sql"), &[(&worker, Type::INT8)]).await?;
    Ok(())
}

/// The running jobs of this worker that somebody asked to cancel.
pub async fn wanted_stopped(client: &Client, worker: i64) -> Result<Vec<Claim>, Error> {
    let rows = db::query(client, include_str!("../sql/wanted_stopped.sql"), &[(&worker, Type::INT8)]).await?;
    Ok(rows.iter().map(|row| Claim { id: row.get(0), fence: row.get(1) }).collect())
}

/// Writes how far jobs are; what is lost is left alone.
pub(crate) async fn progress(client: &Client, reports: &[(Claim, f32, String)]) -> Result<(), Error> {
    let ids: Vec<i64> = reports.iter().map(|(claim, ..)| claim.id).collect();
    let fences: Vec<i64> = reports.iter().map(|(claim, ..)| claim.fence).collect();
    let fractions: Vec<f32> = reports.iter().map(|(_, fraction, _)| *fraction).collect();
    let notes: Vec<&str> = reports.iter().map(|(.., note)| note.as_str()).collect();
    let params: db::Params = &[
        (&ids, Type::INT8_ARRAY),
        (&fences, Type::INT8_ARRAY),
        (&fractions, Type::FLOAT4_ARRAY),
        (&notes, Type::TEXT_ARRAY),
    ];
    client.execute_typed(include_str!("../sql/progress.sql"), params).await?;
    Ok(())
}
