-- migration_table.sql: the schema and the table that records which migrations were applied. One process migrates at a time: the
-- lock ends with the transaction.
select pg_advisory_xact_lock(hashtextextended('ingest.migrate', 0));
create schema if not exists ingest;
create table if not exists ingest.migration (
    version    integer primary key,
    applied_at timestamptz not null default now()
)
