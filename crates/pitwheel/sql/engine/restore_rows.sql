-- restore_rows.sql: inserts what the migrations inserted and what is gone, as after a `truncate` of all tables. Without these rows no
-- job of priority 0 is claimed, no worker is declared dead, no suspect runs, and no event is sent.
-- If the priority 0 is missing, every priority counts as one that jobs have had, because jobs that wait may have any: claims read more
-- levels from then on. How long there was no sweep is unknown: with a tick at the epoch, the next sweep extends all leases and declares
-- no worker dead. A shard is free and read from the start; its former holder has lost it.
-- Returns how many rows it inserted into each table, normally 0 and nothing is written; and when the server started, which changes
-- after a failover. Always one row.
with priorities as (
    insert into pitwheel.used_priority (priority)
    select every.priority
    from generate_series(-9, 9) as every(priority)
    where not exists (select from pitwheel.used_priority where used_priority.priority = 0)
      and not exists (select from pitwheel.used_priority where used_priority.priority = every.priority)
    returning priority
),
ticks as (
    insert into pitwheel.sweep_tick (ticked_at)
    select 'epoch'
    where not exists (select from pitwheel.sweep_tick)
    on conflict (only_row) do nothing
    returning only_row
),
turns as (
    insert into pitwheel.alone_turn (worker, until)
    select 0, '-infinity'
    where not exists (select from pitwheel.alone_turn)
    on conflict (only_row) do nothing
    returning only_row
),
shards as (
    insert into pitwheel.outbox_shard (shard)
    select every.shard
    from generate_series(0, 63) as every(shard)
    where not exists (select from pitwheel.outbox_shard where outbox_shard.shard = every.shard)
    order by every.shard
    on conflict (shard) do nothing
    returning shard
)
select (select count(*) from priorities) as priorities, (select count(*) from ticks) as ticks,
    (select count(*) from turns) as turns, (select count(*) from shards) as shards,
    pg_postmaster_start_time() as server_started_at
