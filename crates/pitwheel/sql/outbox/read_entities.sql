-- read_entities.sql: the events of claimed entities ($2, with the leases $3), each entity's in the order of ids, up to $4 per entity and about
-- $5 bytes of payload. No row for an entity: it has none, its claim was lost, or it is parked: a claim that waited for the parking of
-- the former holder has not seen that. Probes the claims one by one: a join could read all of them, and those that ended lately.
select entity.key, event.id, event.created_at, event.topic, event.type, event.payload, event.headers
from unnest($2::text[], $3::text[]) as entity(key, lease)
cross join lateral (
    select claim.lease
    from pitwheel.outbox_claim as claim
    where claim.source = $1 and claim.entity_key = entity.key and claim.lease = entity.lease::uuid
      and not exists (select from pitwheel.outbox_parked as parked where parked.source = $1 and parked.entity_key = entity.key)
    limit 1
) as held
cross join lateral (
    select source.{id}::bigint as id, {created_at} as created_at, {topic} as topic, {type} as type, {payload} as payload,
        {headers} as headers,
        sum(coalesce(octet_length({payload}), 0)) over (order by source.{id} rows unbounded preceding)
            - coalesce(octet_length({payload}), 0) as bytes_before
    from {table} as source
    where source.{key} = entity.key and {waiting}
    order by source.{key}, source.{id}
    limit $4
) as event
where event.bytes_before < $5
