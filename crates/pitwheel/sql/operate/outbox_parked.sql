-- outbox_parked.sql: one page of the parked entities, after ($1, $2), by source and key. The events that were moved, by relays with
-- shards, are counted up to 1,000 each.
select parked.source, parked.entity_key, parked.since, parked.event_id, parked.topic, parked.reason, moved.events
from pitwheel.outbox_parked as parked
cross join lateral (
    select count(*) as events
    from (
        select
        from pitwheel.outbox_parked_event as event
        where event.entity_key = parked.entity_key and parked.shard is not null
        limit 1000
    ) as one
) as moved
where (parked.source, parked.entity_key) > ($1::text collate "C", $2::text collate "C")
order by parked.source, parked.entity_key
limit $3
