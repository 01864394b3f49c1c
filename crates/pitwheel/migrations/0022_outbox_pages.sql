-- Replay and unpark in pages: no statement reads or moves more rows than its limit, however many events wait or are kept.
--
-- An index of the delivered events on (entity_key, id) would find those of one entity at once. It is not here: every acknowledgement that
-- keeps its events would write it, and took 1.5 to 2.1 times as long with it (ADR 13).
--
-- The functions pin their plans, because they are called from sessions of any settings: by ranges of ids, never by a whole table.

-- replay_page: puts delivered events back, to be delivered again: of those from the id `first_id` and the time `since` (of their
-- delivery) on, and with `only_key` of one entity. Looks at the `span` ids from the first that is kept on, and puts back up to `most` events. They
-- keep their ids. Returns the id to go on from, and how many were put back. Zero rows: none is left.
-- The events are found before any shard is locked. If another replay puts one back meanwhile, it is not counted here.
-- `replay` of 0008 stays, for builds that do not know this function.
create function pitwheel.replay_page(
    first_id bigint, since timestamptz, only_key text, span integer, most integer, actor text
) returns table (next_id bigint, events bigint)
language plpgsql
set enable_seqscan = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
    start_id   bigint;
    found_ids  bigint[];
    found_keys text[];
    last_id    bigint;
    put_back   bigint := 0;
begin
    select sent.id into start_id
    from pitwheel.outbox_sent as sent
    where sent.id >= coalesce(replay_page.first_id, 0)
    order by sent.id
    limit 1;
    if not found then
        return;
    end if;
    select array_agg(page.id), array_agg(distinct page.entity_key), max(page.id) into found_ids, found_keys, last_id
    from (
        select sent.id, sent.entity_key
        from pitwheel.outbox_sent as sent
        where sent.id >= start_id
          and sent.id < start_id + replay_page.span
          and sent.sent_at >= coalesce(replay_page.since, '-infinity')
          and (replay_page.only_key is null or sent.entity_key = replay_page.only_key)
        order by sent.id
        limit replay_page.most
    ) as page;
    if found_ids is not null then
        -- In the order of unpark.
        perform from pitwheel.outbox_shard
        where outbox_shard.shard in (select (hashtextextended(key, 0) & 63)::smallint from unnest(found_keys) as key)
        order by outbox_shard.shard
        for update;
        with gone as (
            delete from pitwheel.outbox_sent as sent
            where sent.id = any (found_ids)
            returning sent.id, sent.created_at, sent.entity_key, sent.topic, sent.type, sent.payload, sent.headers
        ),
        back as (
            insert into pitwheel.outbox (id, created_at, entity_key, topic, type, payload, headers)
            overriding system value
            select distinct on (gone.id) gone.id, gone.created_at, gone.entity_key, gone.topic, gone.type, gone.payload,
                gone.headers
            from gone
            order by gone.id
            on conflict do nothing
            returning outbox.id, outbox.shard
        ),
        changed as (
            update pitwheel.outbox_shard as shard
            set restart = shard.restart + 1, floor = least(shard.floor, first.id - 1)
            from (select back.shard, min(back.id) as id from back group by back.shard) as first
            where shard.shard = first.shard
        ),
        audited as (
            insert into pitwheel.audit (actor, action, subject)
            select replay_page.actor, 'outbox.replay', min(back.id) || ' to ' || max(back.id)
            from back
            having count(*) > 0
        )
        select count(*) into put_back from back;
    end if;
    return query
        select case when cardinality(found_ids) >= replay_page.most then last_id + 1
            else start_id + replay_page.span end, put_back;
end
$$;

-- lock_parked: locks the shards of parked entities, in one order, until the transaction ends. Their holders move events behind parked ones
-- (park.sql); a statement after this one sees what they moved.
create function pitwheel.lock_parked(source text, entity_keys text[]) returns void
language plpgsql
set enable_seqscan = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
begin
    perform from pitwheel.outbox_shard
    where outbox_shard.shard in (
        select parked.shard
        from pitwheel.outbox_parked as parked
        where parked.source = lock_parked.source and parked.entity_key = any (lock_parked.entity_keys)
    )
    order by outbox_shard.shard
    for update;
end
$$;

-- unpark_events: takes up to `most` events from those that were moved aside, null: all, and puts them back with their ids; with `drop` it
-- deletes them, with `skip` the refused ones. Returns a row for each entity that had one, with the number of events put back.
-- Zero rows: none is left. The entities stay parked until end_parking, so it is called in one transaction with that, after lock_parked.
create function pitwheel.unpark_events(source text, entity_keys text[], how text, most integer)
returns table (entity_key text, events bigint)
language plpgsql
set enable_seqscan = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
begin
    return query
    with found as materialized (
        select event.tid, parked.entity_key, parked.event_id as refused
        from pitwheel.outbox_parked as parked
        cross join lateral (
            select moved.ctid as tid
            from pitwheel.outbox_parked_event as moved
            where moved.entity_key = parked.entity_key
            order by moved.entity_key, moved.id
            limit unpark_events.most
        ) as event
        where parked.source = unpark_events.source
          and parked.entity_key = any (unpark_events.entity_keys)
          and parked.shard is not null
        limit unpark_events.most
    ),
    gone as (
        delete from pitwheel.outbox_parked_event as event
        where event.ctid = any (array(select found.tid from found))
        returning event.entity_key, event.id, event.created_at, event.topic, event.type, event.payload, event.headers,
            unpark_events.how = 'retry'
                or unpark_events.how = 'skip'
                and ((event.entity_key, event.id) in (select found.entity_key, found.refused from found)) is not true as is_sent
    ),
    back as (
        insert into pitwheel.outbox (id, created_at, entity_key, topic, type, payload, headers)
        overriding system value
        select gone.id, gone.created_at, gone.entity_key, gone.topic, gone.type, gone.payload, gone.headers
        from gone
        where gone.is_sent
        order by gone.id
        returning outbox.id, outbox.shard
    ),
    changed as (
        update pitwheel.outbox_shard as shard
        set floor = least(shard.floor, first.id - 1)
        from (select back.shard, min(back.id) as id from back group by back.shard) as first
        where shard.shard = first.shard
    )
    select gone.entity_key::text, count(*) filter (where gone.is_sent)
    from gone
    group by gone.entity_key;
end
$$;

-- drop_waiting: deletes the events of parked entities that were not moved aside: not read yet, or of relays that claim entities. Looks at the
-- `span` ids above `above` (null: from the floor on) in the shards of these entities. Returns the id to go on from. Zero rows: none is left.
-- There is no index on the key, so it reads what waits in these shards.
create function pitwheel.drop_waiting(entity_keys text[], above bigint, span integer) returns table (next_above bigint)
language plpgsql
set enable_seqscan = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
    shards   smallint[];
    first_id bigint;
begin
    shards := array(
        select distinct parked.shard
        from pitwheel.outbox_parked as parked
        where parked.source = 'pitwheel.outbox' and parked.entity_key = any (drop_waiting.entity_keys)
    );
    select min(event.id) into first_id
    from pitwheel.outbox_shard as shard
    cross join lateral (
        select outbox.id
        from pitwheel.outbox
        where outbox.shard = shard.shard
          and outbox.id > coalesce(drop_waiting.above, shard.floor)
        order by outbox.id
        limit 1
    ) as event
    where shard.shard = any (shards);
    if first_id is null then
        return;
    end if;
    delete from pitwheel.outbox as event
    where event.ctid = any (array(
        select waiting.tid
        from unnest(shards) as asked(shard)
        cross join lateral (
            select outbox.ctid as tid, outbox.entity_key
            from pitwheel.outbox
            where outbox.shard = asked.shard
              and outbox.id >= first_id
              and outbox.id < first_id + drop_waiting.span
            -- Sorted, so that an index on the key, which a team may have added, is not read instead.
            order by outbox.id
            limit drop_waiting.span
        ) as waiting
        where waiting.entity_key = any (drop_waiting.entity_keys)
    ));
    return query select first_id + drop_waiting.span - 1;
end
$$;

-- end_parking: ends the parking of entities, after their events were put back or deleted in the same transaction. Returns those that were
-- parked. With `skip`, the refused event is deleted if it is still in the outbox, as with relays that claim entities.
create function pitwheel.end_parking(source text, entity_keys text[], how text, actor text) returns table (entity_key text)
language plpgsql
set enable_seqscan = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
begin
    return query
    with ended as (
        delete from pitwheel.outbox_parked as parked
        where parked.source = end_parking.source and parked.entity_key = any (end_parking.entity_keys)
        returning parked.entity_key, parked.shard, parked.event_id
    ),
    skipped as (
        delete from pitwheel.outbox as event
        where event.ctid = any (array(
            select found.tid
            from ended
            cross join lateral (
                select outbox.ctid as tid, outbox.entity_key
                from pitwheel.outbox
                where outbox.shard = ended.shard
                  and outbox.id >= ended.event_id
                  and outbox.id <= ended.event_id
                order by outbox.id
                limit 1
            ) as found
            where end_parking.how = 'skip' and found.entity_key = ended.entity_key
        ))
    ),
    changed as (
        update pitwheel.outbox_shard as shard
        set restart = shard.restart + 1
        where shard.shard in (select ended.shard from ended)
    ),
    audited as (
        insert into pitwheel.audit (actor, action, subject)
        select end_parking.actor, 'outbox.' || end_parking.how, left(ended.entity_key, 200)
        from ended
    )
    select ended.entity_key::text from ended;
end
$$;

-- check_unpark: raises if a parking of this source cannot end so.
create function pitwheel.check_unpark(source text, how text) returns void
language plpgsql
as $$
begin
    if check_unpark.how is null or check_unpark.how not in ('retry', 'skip', 'drop') then
        raise exception 'unpark `%` is not known: retry, skip or drop', check_unpark.how using errcode = '22023';
    end if;
    if check_unpark.how <> 'retry' and check_unpark.source <> 'pitwheel.outbox' then
        raise exception 'the events of `%` stay in its table: change the refused one there, then retry', check_unpark.source
            using errcode = '22023';
    end if;
end
$$;

-- unpark: as before, by the parts above, all in one statement. The library sends the parts one by one, in a transaction.
create or replace function pitwheel.unpark(source text, entity_keys text[], how text, actor text)
returns table (entity_key text, events bigint)
language plpgsql
as $$
#variable_conflict use_column
declare
    put_back jsonb;
    above    bigint;
begin
    perform pitwheel.check_unpark(unpark.source, unpark.how);
    perform pitwheel.lock_parked(unpark.source, unpark.entity_keys);
    select jsonb_object_agg(moved.entity_key, moved.events) into put_back
    from pitwheel.unpark_events(unpark.source, unpark.entity_keys, unpark.how, null) as moved;
    while unpark.how = 'drop' loop
        select dropped.next_above into above from pitwheel.drop_waiting(unpark.entity_keys, above, 20000) as dropped;
        exit when not found;
    end loop;
    return query
        select ended.entity_key, coalesce((put_back ->> ended.entity_key)::bigint, 0)
        from pitwheel.end_parking(unpark.source, unpark.entity_keys, unpark.how, unpark.actor) as ended;
end
$$;
