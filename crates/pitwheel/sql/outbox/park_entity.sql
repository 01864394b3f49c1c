-- park_entity.sql: parks a claimed entity ($2, lease $3) of a source ($1): the event $4 was refused. Its events stay where they are.
-- Returns false if the claim was lost; then nothing is changed. The claim is locked, so that whoever takes the entity over sees the parking.
with held as materialized (
    select claim.entity_key
    from pitwheel.outbox_claim as claim
    where claim.source = $1 and claim.entity_key = $2 and claim.lease = $3::text::uuid
    for update
),
parked as (
    insert into pitwheel.outbox_parked (source, entity_key, shard, event_id, topic, reason)
    select $1, held.entity_key,
        case when $1 = 'pitwheel.outbox' then (hashtextextended(held.entity_key, 0) & 63)::smallint end, $4, $5, $6
    from held
    on conflict (source, entity_key) do nothing
),
freed as (
    delete from pitwheel.outbox_claim as claim
    using held
    where claim.source = $1 and claim.entity_key = held.entity_key
)
select exists (select from held) as held
