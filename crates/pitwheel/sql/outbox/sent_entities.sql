-- sent_entities.sql: events ($4 keys, $5 ids) of claimed entities ($2, leases $3) were delivered: they are deleted or marked, if the claims are still
-- held. Claims of entities of which nothing is left to acknowledge ($6) end. Returns the entities that are held.
-- Finds each row by its ctid, which is unique within one partition of the table only.
-- The commit does not wait for the disk: if it is lost, the events are delivered again.
with held as materialized (
    select held.entity_key
    from unnest($2::text[], $3::text[]) as asked(key, lease)
    cross join lateral (
        select claim.entity_key
        from pitwheel.outbox_claim as claim
        where claim.source = $1 and claim.entity_key = asked.key and claim.lease = asked.lease::uuid
        limit 1
    ) as held
),
found as materialized (
    select event.part, event.tid, event.key, event.id
    from unnest($4::text[], $5::bigint[]) as asked(key, id)
    join held on held.entity_key = asked.key
    cross join lateral (
        select source.tableoid as part, source.ctid as tid, source.{key} as key, source.{id} as id
        from {table} as source
        where source.{key} = asked.key and source.{id} >= asked.id and source.{id} <= asked.id
        order by source.{key}, source.{id}
        limit 1
    ) as event
),
gone as (
    {finish}
    where source.ctid = any (array(select found.tid from found))
      and ((source.tableoid, source.{key}, source.{id}) in (select found.part, found.key, found.id from found)) is true
),
freed as (
    delete from pitwheel.outbox_claim as claim
    where claim.source = $1
      and claim.entity_key = any ($6::text[])
      and claim.entity_key in (select held.entity_key from held)
)
select array(select held.entity_key::text from held) as held, set_config('synchronous_commit', 'off', true)
