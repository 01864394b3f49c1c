-- outbox_shards.sql: the shards, who holds each, and what waits in it: counted up to $1 events, from the floor on, by the primary key.
select shard.shard, relay.name as relay, case when relay.relay is null then null else shard.taken_at end as taken_at,
    waiting.events, waiting.oldest_seconds
from pitwheel.outbox_shard as shard
left join pitwheel.outbox_relay as relay on relay.relay = shard.relay
cross join lateral (
    select count(*) as events, extract(epoch from clock_timestamp() - min(event.created_at))::float8 as oldest_seconds
    from (
        select outbox.created_at
        from pitwheel.outbox
        where outbox.shard = shard.shard
          and outbox.id > shard.floor
        order by outbox.id
        limit $1
    ) as event
) as waiting
order by shard.shard
