-- read_shards.sql: the next events of the shards of a relay: of each, those above its bound, in the order of ids, up to its number and
-- about $6 bytes of payload (one event at least). Reads the primary key from the bound; no locks, no writes.
-- Entities ($7) that could not be sent lately are left out, with all of their events.
-- Nothing is read from a shard that was lost, or whose events were put back: the same snapshot sees the fence and the events. Without
-- that, an event could be read that comes after one put back.
select held.shard, event.id, event.tid, event.created_at, event.entity_key, event.topic, event.type, event.payload, event.headers
from unnest($1::smallint[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[]) as held(shard, lease, restart, bound, most)
join pitwheel.outbox_shard as shard
    on shard.shard = held.shard and shard.lease = held.lease::uuid and shard.restart = held.restart
cross join lateral (
    select outbox.id, outbox.ctid as tid, outbox.created_at, outbox.entity_key, outbox.topic, outbox.type, outbox.payload,
        outbox.headers,
        sum(coalesce(octet_length(outbox.payload), 0)) over (order by outbox.id rows unbounded preceding)
            - coalesce(octet_length(outbox.payload), 0) as bytes_before
    from pitwheel.outbox
    where outbox.shard = held.shard
      and outbox.id > held.bound
      and (outbox.entity_key in (select unnest($7::text[]))) is not true
    order by outbox.id
    limit held.most
) as event
where event.bytes_before < $6
