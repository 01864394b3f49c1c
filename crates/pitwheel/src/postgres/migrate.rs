//! The schema: forward only, safe when many nodes start at once.

use std::time::Duration;

use tokio_postgres::Transaction;
use tokio_postgres::types::Type;

use super::pool::Pool;
use super::session::{Sql, query};
use crate::error::Error;

/// A migration.
pub struct Migration {
    /// Counted from 1, without gaps.
    pub version: i32,
    /// Its name.
    pub name: &'static str,
    /// Its statements. `-- breaking` on line 1: builds that do not know it refuse to work with the schema.
    pub sql: &'static str,
}

/// All migrations, oldest first. A published one is never edited.
pub const MIGRATIONS: &[Migration] = &[
    Migration { version: 1, name: "job", sql: include_str!("../../migrations/0001_job.sql") },
    Migration { version: 2, name: "operate", sql: include_str!("../../migrations/0002_operate.sql") },
    Migration { version: 3, name: "settle", sql: include_str!("../../migrations/0003_settle.sql") },
    Migration { version: 4, name: "alone", sql: include_str!("../../migrations/0004_alone.sql") },
    Migration { version: 5, name: "recurring", sql: include_str!("../../migrations/0005_recurring.sql") },
    Migration { version: 6, name: "lanes", sql: include_str!("../../migrations/0006_lanes.sql") },
    Migration { version: 7, name: "pipelines", sql: include_str!("../../migrations/0007_pipelines.sql") },
    Migration { version: 8, name: "outbox", sql: include_str!("../../migrations/0008_outbox.sql") },
    Migration {
        version: 9,
        name: "lanes_of_steps",
        sql: include_str!("../../migrations/0009_lanes_of_steps.sql"),
    },
    Migration {
        version: 10,
        name: "recurring_room",
        sql: include_str!("../../migrations/0010_recurring_room.sql"),
    },
    Migration {
        version: 11,
        name: "used_priority",
        sql: include_str!("../../migrations/0011_used_priority.sql"),
    },
    Migration { version: 12, name: "job_due", sql: include_str!("../../migrations/0012_job_due.sql") },
    Migration {
        version: 13,
        name: "claims_fire_no_trigger",
        sql: include_str!("../../migrations/0013_claims_fire_no_trigger.sql"),
    },
    Migration {
        version: 14,
        name: "short_conditions",
        sql: include_str!("../../migrations/0014_short_conditions.sql"),
    },
    Migration {
        version: 15,
        name: "prune_outbox_rights",
        sql: include_str!("../../migrations/0015_prune_outbox_rights.sql"),
    },
    Migration { version: 16, name: "lane_pass", sql: include_str!("../../migrations/0016_lane_pass.sql") },
    Migration { version: 17, name: "place_run", sql: include_str!("../../migrations/0017_place_run.sql") },
    Migration {
        version: 18,
        name: "worker_indexes",
        sql: include_str!("../../migrations/0018_worker_indexes.sql"),
    },
    Migration { version: 19, name: "limits", sql: include_str!("../../migrations/0019_limits.sql") },
    Migration { version: 20, name: "lane_turn", sql: include_str!("../../migrations/0020_lane_turn.sql") },
    Migration {
        version: 21,
        name: "locked_workers",
        sql: include_str!("../../migrations/0021_locked_workers.sql"),
    },
    Migration {
        version: 22,
        name: "outbox_pages",
        sql: include_str!("../../migrations/0022_outbox_pages.sql"),
    },
    Migration {
        version: 23,
        name: "promote_skips_locked",
        sql: include_str!("../../migrations/0023_promote_skips_locked.sql"),
    },
    Migration {
        version: 24,
        name: "promote_lane_by_lane",
        sql: include_str!("../../migrations/0024_promote_lane_by_lane.sql"),
    },
    Migration { version: 25, name: "lane_turns", sql: include_str!("../../migrations/0025_lane_turns.sql") },
    Migration {
        version: 26,
        name: "parked_keys",
        sql: include_str!("../../migrations/0026_parked_keys.sql"),
    },
    Migration {
        version: 27,
        name: "stored_limits",
        sql: include_str!("../../migrations/0027_stored_limits.sql"),
    },
    Migration {
        version: 28,
        name: "prune_waits_less",
        sql: include_str!("../../migrations/0028_prune_waits_less.sql"),
    },
    Migration { version: 29, name: "early_runs", sql: include_str!("../../migrations/0029_early_runs.sql") },
    Migration {
        version: 30,
        name: "retry_withdraws_cancel",
        sql: include_str!("../../migrations/0030_retry_withdraws_cancel.sql"),
    },
    Migration { version: 31, name: "carried", sql: include_str!("../../migrations/0031_carried.sql") },
    Migration {
        version: 32,
        name: "start_steps",
        sql: include_str!("../../migrations/0032_start_steps.sql"),
    },
    Migration {
        version: 33,
        name: "prune_default",
        sql: include_str!("../../migrations/0033_prune_default.sql"),
    },
    Migration {
        version: 34,
        name: "cadence_length",
        sql: include_str!("../../migrations/0034_cadence_length.sql"),
    },
    Migration {
        version: 35,
        name: "cancel_pipeline",
        sql: include_str!("../../migrations/0035_cancel_pipeline.sql"),
    },
];

/// Lets one node migrate at a time.
pub const MIGRATION_LOCK: &str = include_str!("../../sql/postgres/migration_lock.sql");
const MIGRATION_SETTINGS: &str = include_str!("../../sql/postgres/migration_settings.sql");
const MIGRATION_LOCK_TIMEOUT: &str = include_str!("../../sql/postgres/migration_lock_timeout.sql");
const MIGRATION_TABLE: &str = include_str!("../../sql/postgres/migration_table.sql");
const RECORD_MIGRATION: &str = include_str!("../../sql/postgres/record_migration.sql");
const HAS_MIGRATIONS: &str = include_str!("../../sql/postgres/has_migrations.sql");
const SCHEMA_VERSION: &str = include_str!("../../sql/postgres/schema_version.sql");

/// Attempts at a migration, in about five minutes.
const ATTEMPTS: usize = 100;
/// Between two attempts. What had to wait for the last one goes on.
const PAUSE: Duration = Duration::from_secs(1);

/// The version of the schema in a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigrationStatus {
    /// The version in the database; 0 when there is none.
    pub found: i32,
    /// The newest version this build knows.
    pub known: i32,
    /// The names of the migrations that `migrate` would apply.
    pub pending: Vec<&'static str>,
}

/// Brings the schema up to the version of this build. Returns the names of the migrations that were applied. While another
/// transaction uses the tables, it tries again and again for some minutes. It keeps the lock of migrations meanwhile: if another node
/// tried in the pauses, claims and settles would find none.
pub(crate) async fn migrate(pool: &Pool) -> Result<Vec<&'static str>, Error> {
    let mut client = pool.get().await?;
    // A node without the rights of the owner may start, if there is nothing to do.
    let current = found(&client).await?;
    if current.version >= newest() {
        return refuse_newer(&current).map(|()| Vec::new());
    }
    let mut transaction = client.transaction().await?;
    transaction.batch_execute(MIGRATION_SETTINGS).await?;
    transaction.batch_execute(MIGRATION_LOCK).await?;
    for _ in 1..ATTEMPTS {
        match migrate_once(&mut transaction).await {
            Err(Error::Database(error)) if error.is_locked() => {
                tracing::warn!("a transaction uses the tables to be migrated, will try again");
                tokio::time::sleep(PAUSE).await;
            }
            Err(error) => return Err(error),
            Ok(applied) => return commit(transaction, applied).await,
        }
    }
    let applied = migrate_once(&mut transaction).await?;
    commit(transaction, applied).await
}

async fn commit<T>(transaction: Transaction<'_>, applied: T) -> Result<T, Error> {
    transaction.commit().await?;
    Ok(applied)
}

/// One attempt, after a savepoint: if it fails, its locks are gone, but for the lock of migrations.
async fn migrate_once(transaction: &mut Transaction<'_>) -> Result<Vec<&'static str>, Error> {
    let attempt = transaction.transaction().await?;
    match apply(&attempt).await {
        Ok(applied) => {
            attempt.commit().await?;
            Ok(applied)
        }
        Err(error) => {
            attempt.rollback().await?;
            Err(error)
        }
    }
}

async fn apply(attempt: &Transaction<'_>) -> Result<Vec<&'static str>, Error> {
    attempt.batch_execute(MIGRATION_LOCK_TIMEOUT).await?;
    attempt.batch_execute(MIGRATION_TABLE).await?;
    let found = found(attempt.client()).await?;
    refuse_newer(&found)?;
    let mut applied = Vec::new();
    for migration in MIGRATIONS.iter().filter(|migration| migration.version > found.version) {
        attempt.batch_execute(migration.sql).await?;
        let breaking = migration.sql.starts_with("-- breaking");
        attempt
            .execute_typed(
                RECORD_MIGRATION,
                &[(&migration.version, Type::INT4), (&migration.name, Type::TEXT), (&breaking, Type::BOOL)],
            )
            .await?;
        applied.push(migration.name);
    }
    Ok(applied)
}

pub(crate) async fn status(client: &impl Sql) -> Result<MigrationStatus, Error> {
    let found = found(client).await?;
    Ok(MigrationStatus {
        found: found.version,
        known: newest(),
        pending: MIGRATIONS.iter().filter(|one| one.version > found.version).map(|one| one.name).collect(),
    })
}

/// Whether this build can work with the schema as it is.
pub(crate) async fn check(client: &impl Sql) -> Result<(), Error> {
    let found = found(client).await?;
    refuse_newer(&found)?;
    if found.version < newest() {
        return Err(Error::SchemaBehind { found: found.version, needed: newest() });
    }
    Ok(())
}

struct Found {
    version: i32,
    /// The newest breaking migration that this build does not know.
    breaking: Option<i32>,
}

async fn found(client: &impl Sql) -> Result<Found, Error> {
    let there = query(client, HAS_MIGRATIONS, &[]).await?;
    if !there[0].get::<_, bool>(0) {
        return Ok(Found { version: 0, breaking: None });
    }
    let rows = query(client, SCHEMA_VERSION, &[(&newest(), Type::INT4)]).await?;
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
