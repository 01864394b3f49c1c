-- release_shards.sql: gives shards back at once, each with its floor.
-- Zero rows for a shard: it was lost before.
update pitwheel.outbox_shard as shard
set relay = null, lease = null,
    floor = case when shard.restart = held.restart then greatest(shard.floor, held.floor) else shard.floor end
from unnest($1::smallint[], $2::text[], $3::bigint[], $4::bigint[]) as held(shard, lease, restart, floor)
where shard.shard = held.shard
  and shard.lease = held.lease::uuid
returning shard.shard
