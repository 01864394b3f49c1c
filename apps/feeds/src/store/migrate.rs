//! The schema `feeds`: forward only, safe when many processes start at once.

use deadpool_postgres::Object;

use crate::error::Error;

/// All migrations, oldest first. A published one is never edited.
const MIGRATIONS: [&str; 1] = [include_str!("../../migrations/0001_feeds.sql")];

/// Brings the schema up to the version of this program.
pub(crate) async fn migrate(mut client: Object) -> Result<(), Error> {
    let transaction = client.transaction().await?;
    transaction.batch_execute(include_str!("../../sql/migration_table.sql")).await?;
    let found: i32 =
        transaction.query_one(include_str!("../../sql/migration_version.sql"), &[]).await?.get(0);
    let known = i32::try_from(MIGRATIONS.len()).unwrap_or(i32::MAX);
    if found > known {
        return Err(Error::SchemaAhead { found, known });
    }
    for (version, sql) in (1..).zip(MIGRATIONS).filter(|(version, _)| *version > found) {
        transaction.batch_execute(sql).await?;
        transaction.execute(include_str!("../../sql/record_migration.sql"), &[&version]).await?;
    }
    Ok(transaction.commit().await?)
}
