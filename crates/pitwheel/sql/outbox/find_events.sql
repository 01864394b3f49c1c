-- find_events.sql: where events are now, by the primary key: a rewrite of the table (vacuum full) moves rows. No row: it is gone.
select event.tid, asked.shard, asked.id
from unnest($1::smallint[], $2::bigint[]) as asked(shard, id)
cross join lateral (
    select outbox.ctid as tid
    from pitwheel.outbox
    where outbox.shard = asked.shard
      and outbox.id >= asked.id
      and outbox.id <= asked.id
    order by outbox.id
    limit 1
) as event
