-- has_migrations.sql: whether any version of the schema was ever installed.
select to_regclass('pitwheel.migration') is not null
