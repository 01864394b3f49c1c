-- look_back.sql: of each shard, the first event above one id, up to another: one that was committed after the relay had read past it.
-- Reads the primary key. No row for a shard: there is none.
select asked.shard, event.id
from unnest($1::smallint[], $2::bigint[], $3::bigint[]) as asked(shard, above, up_to)
cross join lateral (
    select outbox.id
    from pitwheel.outbox
    where outbox.shard = asked.shard
      and outbox.id > asked.above
      and outbox.id <= asked.up_to
    order by outbox.id
    limit 1
) as event
