-- locked_events.sql: of these events, those whose rows another transaction has locked. Sent after an acknowledgement that met a lock. It never
-- waits, and its own locks end with it. Zero rows: none is locked; those that are gone are not returned either.
-- The rows are found once, by the primary key, and locked by their ctids.
with found as materialized (
    select event.tid, event.id
    from unnest($1::smallint[], $2::bigint[]) as asked(shard, id)
    cross join lateral (
        select outbox.ctid as tid, outbox.id
        from pitwheel.outbox
        where outbox.shard = asked.shard
          and outbox.id >= asked.id
          and outbox.id <= asked.id
        order by outbox.id
        limit 1
    ) as event
),
free as materialized (
    select event.id
    from pitwheel.outbox as event
    where event.ctid = any (array(select found.tid from found))
    for update skip locked
)
select found.id
from found
where (found.id in (select free.id from free)) is not true
