-- Which worker may stop claiming, to run a suspect alone. Without it, one suspect would make every worker stop at once.
create table pitwheel.alone_turn (
    only_row boolean primary key default true check (only_row),
    worker   bigint      not null,
    until    timestamptz not null
);
insert into pitwheel.alone_turn (worker, until) values (0, '-infinity');

-- The bounds of partitions are written and read as text: they must not depend on the session.
alter function pitwheel.prune_history(interval) set datestyle = 'ISO';
alter function pitwheel.prune_history(interval) set timezone = 'UTC';
