-- park.sql: moves events ($7) of a shard ($1) behind those of their parked entities, and with a reason ($6) parks the entity first.
-- Returns false if the shard was lost, or events were put back; then nothing is changed. The row of the shard is locked: a relay that takes
-- it over, or an operator who ends the parking, comes before this or after it, and each sees what the other did.
with held as materialized (
    select shard.shard
    from pitwheel.outbox_shard as shard
    where shard.shard = $1
      and shard.lease = $2::text::uuid
      and shard.restart = $3
    for no key update
),
parked as (
    insert into pitwheel.outbox_parked (entity_key, shard, event_id, topic, reason)
    select $4, held.shard, $5, $8, $6
    from held
    where $6::text is not null
    on conflict (source, entity_key) do nothing
),
gone as (
    delete from pitwheel.outbox as event
    where event.ctid = any (array(
        select found.tid
        from held
        cross join unnest($7::bigint[]) as asked(id)
        cross join lateral (
            select outbox.ctid as tid
            from pitwheel.outbox
            where outbox.shard = held.shard
              and outbox.id >= asked.id
              and outbox.id <= asked.id
            order by outbox.id
            limit 1
        ) as found
    ))
    returning event.entity_key, event.id, event.created_at, event.topic, event.type, event.payload, event.headers
),
moved as (
    insert into pitwheel.outbox_parked_event (entity_key, id, created_at, topic, type, payload, headers)
    select gone.entity_key, gone.id, gone.created_at, gone.topic, gone.type, gone.payload, gone.headers
    from gone
    on conflict (entity_key, id) do nothing
)
select exists (select from held) as held
