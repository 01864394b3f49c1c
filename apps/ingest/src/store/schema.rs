//! The migrations of the schema.

use pitwheel_app::Schema;

pub(crate) const SCHEMA: Schema = Schema {
    table: include_str!("../../sql/migration_table.sql"),
    version: include_str!("../../sql/migration_version.sql"),
    record: include_str!("../../sql/record_migration.sql"),
    migrations: &[include_str!("../../migrations/0001_ingest.sql")],
};
