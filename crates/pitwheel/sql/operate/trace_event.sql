-- trace_event.sql: where an event is: waiting, parked, or delivered and kept. The newest first. Zero rows: it was delivered and not kept,
-- dropped, or never committed. Reads the primary key of each shard.
select 'waiting' as state, event.entity_key, event.topic, event.type, event.created_at, null::timestamptz as sent_at, shard.shard,
    relay.name as relay, null::text as reason
from pitwheel.outbox_shard as shard
cross join lateral (
    select outbox.entity_key, outbox.topic, outbox.type, outbox.created_at
    from pitwheel.outbox
    where outbox.shard = shard.shard
      and outbox.id >= $1
      and outbox.id <= $1
    order by outbox.id
    limit 1
) as event
left join pitwheel.outbox_relay as relay on relay.relay = shard.relay
union all
select 'parked', event.entity_key, event.topic, event.type, event.created_at, null, parked.shard, null, parked.reason
from pitwheel.outbox_parked_event as event
left join pitwheel.outbox_parked as parked on parked.source = 'pitwheel.outbox' and parked.entity_key = event.entity_key
where event.id = $1
union all
select 'sent', sent.entity_key, sent.topic, sent.type, sent.created_at, sent.sent_at, null, null, null
from pitwheel.outbox_sent as sent
where sent.id = $1
limit 10
