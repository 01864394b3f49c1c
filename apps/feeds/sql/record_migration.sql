-- record_migration.sql: a migration was applied.
insert into feeds.migration (version) values ($1)
