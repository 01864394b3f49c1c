//! The schema of an application: forward only, safe when many processes start at once.

use deadpool_postgres::Object;
use pitwheel::Error;

/// The schema of an application, and the statements that migrate it.
#[derive(Debug, Clone, Copy)]
pub struct Schema {
    /// Creates the schema and the table of migrations, if they are missing. It locks: one process migrates at a time.
    pub table: &'static str,
    /// Returns the version of the schema.
    pub version: &'static str,
    /// Records that the migration `$1` was applied.
    pub record: &'static str,
    /// All migrations, oldest first. A published one is never edited.
    pub migrations: &'static [&'static str],
}

/// Brings the schema up to the version of this program.
///
/// # Errors
/// [`Error::SchemaAhead`] if the schema is of a newer program.
pub async fn migrate(mut client: Object, schema: &Schema) -> Result<(), Error> {
    let transaction = client.transaction().await?;
    transaction.batch_execute(schema.table).await?;
    let found: i32 = transaction.query_one(schema.version, &[]).await?.get(0);
    let known = i32::try_from(schema.migrations.len()).unwrap_or(i32::MAX);
    if found > known {
        return Err(Error::SchemaAhead { found, known });
    }
    for (version, sql) in (1..).zip(schema.migrations).filter(|(version, _)| *version > found) {
        transaction.batch_execute(sql).await?;
        transaction.execute(schema.record, &[&version]).await?;
    }
    Ok(transaction.commit().await?)
}
