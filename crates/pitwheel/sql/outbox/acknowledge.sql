-- acknowledge.sql: the events were delivered, and are deleted, if their shards ($1) are still held with these leases ($2).
-- Returns the shards that are held, and how many events were deleted. Fewer than given for the shards held: rows have moved (find_events.sql).
-- Finds each row by its ctid, as done.sql does. The fence is read in the snapshot of the delete, without a lock: an event leaves the
-- table only by its holder or by a statement that waits for the holder, and as long as this snapshot lives, no ctid gets another row.
-- The commit does not wait for the disk: if it is lost, the events are delivered again.
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
    returning event.id
)
select array(select held.shard from held) as held, (select count(*) from gone) as deleted,
    set_config('synchronous_commit', 'off', true)
