-- migration_table.sql: the schema and the table that records which migrations were applied.
create schema if not exists pitwheel;
create table if not exists pitwheel.migration (
    version    integer primary key,
    name       text not null,
    breaking   boolean not null default true,
    applied_at timestamptz not null default now()
)
