-- Which worker may stop claiming, to run a suspect alone. Without it, one suspect would make every worker stop at once.
create table pitwheel.alone_turn (
    only_row boolean primary key default true check (only_row),
    worker   bigint      not null,
    until    timestamptz not null
);
insert into pitwheel.alone_turn (worker, until) values (0, '-infinity');

-- The bounds of partitions are written and read as text: they must not depend on the session. The function creates and drops
-- tables, so it runs with the rights of the owner of the schema: workers need rights on rows only.
alter function pitwheel.prune_history(interval) set datestyle = 'ISO';
alter function pitwheel.prune_history(interval) set timezone = 'UTC';
alter function pitwheel.prune_history(interval) set search_path = pg_catalog, pg_temp;
alter function pitwheel.prune_history(interval) security definer;
revoke execute on function pitwheel.prune_history(interval) from public;
