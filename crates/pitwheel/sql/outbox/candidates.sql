-- candidates.sql: up to $2 entities above $1 that have events to send, in the order of their keys, without those that a relay holds and
-- those that are parked. The names in braces are replaced by those of the source's columns. Each step is one probe of the index on
-- (key, id): however many events an entity has, and wherever it stands in the order, none is starved.
-- $3 is the source. Returns also the entities that are left out, so that the caller knows where to go on.
with recursive entity(key, n) as (
    (
        select source.{key}::text, 1
        from {table} as source
        where source.{key} > $1::text and {waiting}
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
select entity.key, not exists (
    select from pitwheel.outbox_claim as claim where claim.source = $3 and claim.entity_key = entity.key
) and not exists (
    select from pitwheel.outbox_parked as parked where parked.source = $3 and parked.entity_key = entity.key
) as free
from entity
where entity.key is not null
