-- parked_of_shards.sql: the parked entities of these shards. Only their holders park, and whoever ends a parking raises `restart`: the
-- holder's list stays right until then.
select parked.shard, parked.entity_key
from pitwheel.outbox_parked as parked
where parked.shard = any ($1::smallint[])
  and parked.source = 'pitwheel.outbox'
