-- candidates.sql: up to $2 entities from $1 on that have events to send, in the order of their keys. The names in braces are replaced by those
-- of the source's columns. Each step is one probe of the index on (key, id): however many events an entity has, and wherever it
-- stands in the order, none is starved.
-- $3 is the source. `free`: no living relay holds it, and it is not parked. Entities that are not free are returned too, so that the caller
-- knows where to go on. `dead_lease`: the lease of a claim whose relay is dead; it was committed after the relay was declared dead. A claim
-- that this statement sees was committed after its relay, so a relay that is not seen is dead.
with recursive entity(key, n) as (
    (
        select source.{key}::text, 1
        from {table} as source
        where source.{key} >= $1::text and {waiting}
        order by source.{key}
        limit 1
    )
    union all
    select (
        select source.{key}::text
        from {table} as source
        where source.{key} > entity.key and {waiting}
        order by source.{key}
        limit 1
    ), entity.n + 1
    from entity
    where entity.key is not null and entity.n < $2::bigint
)
select entity.key, (claim.lease is null or relay.relay is null) and not exists (
    select from pitwheel.outbox_parked as parked where parked.source = $3 and parked.entity_key = entity.key
) as free, case when relay.relay is null then claim.lease::text end as dead_lease
from entity
left join lateral (
    select known.lease, known.relay
    from pitwheel.outbox_claim as known
    where known.source = $3 and known.entity_key = entity.key
    limit 1
) as claim on true
left join pitwheel.outbox_relay as relay on relay.relay = claim.relay
where entity.key is not null
