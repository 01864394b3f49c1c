-- acknowledge_keep.sql: like acknowledge.sql, and the events move to outbox_sent.
with held as materialized (
    select shard.shard
    from unnest($1::smallint[], $2::text[]) as asked(shard, lease)
    join pitwheel.outbox_shard as shard on shard.shard = asked.shard and shard.lease = asked.lease::uuid
),
gone as (
    delete from pitwheel.outbox as event
    where event.ctid = any ($3::tid[])
      and ((event.shard, event.id) in (
          select sent.shard, sent.id from unnest($4::smallint[], $5::bigint[]) as sent(shard, id)
      )) is true
      and (event.shard in (select held.shard from held)) is true
    returning event.id, event.created_at, event.entity_key, event.topic, event.type, event.payload, event.headers
),
kept as (
    insert into pitwheel.outbox_sent (id, created_at, entity_key, topic, type, payload, headers)
    select gone.id, gone.created_at, gone.entity_key, gone.topic, gone.type, gone.payload, gone.headers
    from gone
)
select array(select held.shard from held) as held, (select count(*) from gone) as deleted,
    set_config('synchronous_commit', 'off', true)
