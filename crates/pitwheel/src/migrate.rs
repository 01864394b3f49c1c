//! The schema: forward only, safe when many nodes start at once.

use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::db::{self, Pool};
use crate::error::Error;

/// One step of the schema.
pub struct Migration {
    /// Counted from 1, without gaps.
    pub version: i32,
    /// What it brings.
    pub name: &'static str,
    /// Its statements. `-- breaking` on line 1: builds that do not know it cannot work with it.
    pub sql: &'static str,
}

/// All steps, oldest first. A published one is never edited.
pub const MIGRATIONS: &[Migration] = &[
    Migration { version: 1, name: "job", sql: include_str!("../migrations/0001_job.sql") },
    Migration { version: 2, name: "operate", sql: include_str!("../migrations/0002_operate.sql") },
];

/// One node migrates at a time. Held by the transaction, so that it passes through a pooler and cannot leak.
pub const LOCK: &str = "select pg_advisory_xact_lock(hashtextextended('pitwheel.migrate', 0))";

const BOOTSTRAP: &str = "
    create schema if not exists pitwheel;
    create table if not exists pitwheel.migration (
        version    integer primary key,
        name       text not null,
        breaking   boolean not null default true,
        applied_at timestamptz not null default now()
    )";

/// Where a database stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigrationStatus {
    /// The version in the database; 0 when there is none.
    pub found: i32,
    /// The newest version this build knows.
    pub known: i32,
    /// The names of what `migrate` would apply.
    pub pending: Vec<&'static str>,
}

/// Brings the schema up to this build, or finds that it is; returns what was applied.
pub(crate) async fn migrate(pool: &Pool) -> Result<Vec<&'static str>, Error> {
    let mut client = pool.get().await?;
    let transaction = client.transaction().await?;
    transaction.batch_execute(LOCK).await?;
    transaction.batch_execute(BOOTSTRAP).await?;
    let found = found(transaction.client()).await?;
    refuse_newer(&found)?;
    let mut applied = Vec::new();
    for migration in MIGRATIONS.iter().filter(|migration| migration.version > found.version) {
        transaction.batch_execute(migration.sql).await?;
        let breaking = migration.sql.starts_with("-- breaking");
        transaction
            .execute_typed(
                "insert into pitwheel.migration (version, name, breaking) values ($1, $2, $3)",
                &[(&migration.version, Type::INT4), (&migration.name, Type::TEXT), (&breaking, Type::BOOL)],
            )
            .await?;
        applied.push(migration.name);
    }
    transaction.commit().await?;
    Ok(applied)
}

pub(crate) async fn status(client: &Client) -> Result<MigrationStatus, Error> {
    let found = found(client).await?;
    Ok(MigrationStatus {
        found: found.version,
        known: newest(),
        pending: MIGRATIONS.iter().filter(|one| one.version > found.version).map(|one| one.name).collect(),
    })
}

/// Whether this build can work with the schema as it is.
pub(crate) async fn check(client: &Client) -> Result<(), Error> {
    let found = found(client).await?;
    refuse_newer(&found)?;
    if found.version < newest() {
        return Err(Error::SchemaBehind { found: found.version, needed: newest() });
    }
    Ok(())
}

struct Found {
    version: i32,
    /// The newest step that this build does not know and that says it breaks such builds.
    breaking: Option<i32>,
}

async fn found(client: &Client) -> Result<Found, Error> {
    let there = db::query(client, "select to_regclass('pitwheel.migration') is not null", &[]).await?;
    if !there[0].get::<_, bool>(0) {
        return Ok(Found { version: 0, breaking: None });
    }
    let sql = "select coalesce(max(version), 0), max(version) filter (where breaking and version > $1)
        from pitwheel.migration";
    let rows = db::query(client, sql, &[(&newest(), Type::INT4)]).await?;
    Ok(Found { version: rows[0].get(0), breaking: rows[0].get(1) })
}

fn refuse_newer(found: &Found) -> Result<(), Error> {
    match found.breaking {
        Some(_) => Err(Error::SchemaAhead { found: found.version, known: newest() }),
        None => Ok(()),
    }
}

fn newest() -> i32 {
    MIGRATIONS.last().map_or(0, |migration| migration.version)
}
