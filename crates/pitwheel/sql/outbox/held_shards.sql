-- held_shards.sql: the shards that a relay holds. A shard that is not returned was lost or released.
select shard.shard, shard.lease::text, shard.floor, shard.restart
from pitwheel.outbox_shard as shard
where shard.relay = $1::text::uuid
order by shard.shard
