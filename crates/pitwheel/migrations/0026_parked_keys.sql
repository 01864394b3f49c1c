-- An unpark ends the parking of those entities only whose shards it has locked. Until now it also ended one that began after the locks:
-- the holder of that shard could move another event aside at the same time, which then stayed there, in no list.

-- lock_parked: as before, and returns the entities that it found parked. Only these are given to the parts that follow. They are read
-- once, together with their shards: a second read could find others.
drop function pitwheel.lock_parked(text, text[]);
create function pitwheel.lock_parked(source text, entity_keys text[]) returns text[]
language plpgsql
set enable_seqscan = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
    parked_keys text[];
    shards      smallint[];
begin
    select coalesce(array_agg(parked.entity_key), '{}'), array_agg(distinct parked.shard) into parked_keys, shards
    from pitwheel.outbox_parked as parked
    where parked.source = lock_parked.source and parked.entity_key = any (lock_parked.entity_keys);
    perform from pitwheel.outbox_shard
    where outbox_shard.shard = any (shards)
    order by outbox_shard.shard
    for update;
    return parked_keys;
end
$$;

-- unpark: as before, for the entities that lock_parked found.
create or replace function pitwheel.unpark(source text, entity_keys text[], how text, actor text)
returns table (entity_key text, events bigint)
language plpgsql
as $$
#variable_conflict use_column
declare
    parked_keys text[];
    put_back    jsonb;
    above       bigint;
begin
    perform pitwheel.check_unpark(unpark.source, unpark.how);
    parked_keys := pitwheel.lock_parked(unpark.source, unpark.entity_keys);
    select jsonb_object_agg(moved.entity_key, moved.events) into put_back
    from pitwheel.unpark_events(unpark.source, parked_keys, unpark.how, null) as moved;
    while unpark.how = 'drop' loop
        select dropped.next_above into above from pitwheel.drop_waiting(parked_keys, above, 20000) as dropped;
        exit when not found;
    end loop;
    return query
        select ended.entity_key, coalesce((put_back ->> ended.entity_key)::bigint, 0)
        from pitwheel.end_parking(unpark.source, parked_keys, unpark.how, unpark.actor) as ended;
end
$$;
