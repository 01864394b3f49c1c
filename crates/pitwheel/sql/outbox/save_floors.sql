-- save_floors.sql: remembers the floors of shards for the next holder, so that it does not read past what was delivered.
-- Zero rows for a shard: it was lost, or events were put back below its floor.
update pitwheel.outbox_shard as shard
set floor = held.floor
from unnest($1::smallint[], $2::text[], $3::bigint[], $4::bigint[]) as held(shard, lease, restart, floor)
where shard.shard = held.shard
  and shard.lease = held.lease::uuid
  and shard.restart = held.restart
  and shard.floor < held.floor
returning shard.shard
