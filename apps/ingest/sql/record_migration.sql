-- record_migration.sql: a migration was applied.
insert into ingest.migration (version) values ($1)
