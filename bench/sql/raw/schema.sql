-- schema.sql: the plain table of the raw loop, created anew for each run.
-- Half of each page is left free, so that a claim finds room for the new version of the row beside the old one (HOT)
-- and touches no index.
drop schema if exists raw_bench cascade;
create schema raw_bench;
create table raw_bench.job (
    id bigint generated always as identity primary key,
    fence bigint not null default 0,
    holder bigint,
    run_at timestamptz not null,
    priority smallint not null,
    queue text not null,
    kind text not null,
    payload json not null
) with (fillfactor = 50);
create index job_due on raw_bench.job (queue, priority, run_at, id);
