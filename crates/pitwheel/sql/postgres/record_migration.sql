-- record_migration.sql: a migration was applied.
insert into pitwheel.migration (version, name, breaking)
values ($1, $2, $3)
