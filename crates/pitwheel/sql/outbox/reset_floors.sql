-- reset_floors.sql: saved floors above the last id that was drawn are impossible, and would hide events: the database was replaced by one that
-- is behind, or the outbox truncated with `restart identity`. Raises `restart`, so that no holder saves its floor again: it reads from the
-- start. Zero rows: there is no such floor. Locks in the order of unpark and replay.
with wrong as materialized (
    select shard.shard
    from pitwheel.outbox_shard as shard
    where shard.floor > (
        select case when outbox_id_seq.is_called then outbox_id_seq.last_value else 0 end from pitwheel.outbox_id_seq
    )
    order by shard.shard
    for no key update
)
update pitwheel.outbox_shard as shard
set floor = 0, restart = shard.restart + 1
from wrong
where shard.shard = wrong.shard
returning shard.shard
