-- migration_version.sql: the version of the schema; 0 when no migration was applied.
select coalesce(max(version), 0) from ingest.migration
