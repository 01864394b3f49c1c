-- The outbox: events that are written with the user's data and delivered by relays, in the order of their ids within an entity.
--
-- Three rules shape these tables.
--   An event is never updated: it is inserted, read, and deleted or moved when it was delivered.
--   Ids are drawn in the insert, which holds a lock on the table: whoever may still commit a smaller id can be found (writers.sql). So
--   the identity caches nothing, and no statement but those of 0008 gives an id of its own.
--   There is no status and no counter: what is in the table waits.

-- A shard is a fixed part of all entities. The modulus is part of the schema; relays share shards, not entities.
create table pitwheel.outbox (
    id         bigint      generated always as identity (cache 1),
    created_at timestamptz not null default clock_timestamp(),
    shard      smallint    not null generated always as ((hashtextextended(entity_key, 0) & 63)::smallint) stored,
    entity_key text        collate "C" not null,
    topic      text        collate "C" not null,
    type       text        not null,
    payload    bytea,      -- null: a tombstone
    headers    jsonb,
    constraint outbox_entity_key_has_1_to_512_bytes check (octet_length(entity_key) between 1 and 512),
    constraint outbox_topic_is_legal_for_kafka check (topic ~ '^[A-Za-z0-9._-]{1,249}$' and topic not in ('.', '..')),
    constraint outbox_type_has_1_to_255_bytes check (octet_length(type) between 1 and 255),
    -- With the headers, what a Kafka broker with default settings accepts.
    constraint outbox_payload_has_at_most_1000000_bytes check (octet_length(payload) <= 1000000),
    constraint outbox_headers_are_an_object_of_at_most_32_kib
        check (jsonb_typeof(headers) = 'object' and pg_column_size(headers) <= 32768),
    primary key (shard, id)
) with (
    vacuum_truncate = off,
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000
);

-- A relay and its lease, which covers all that it holds. A process that starts again is another relay. A relay without a row is
-- dead for good, and what it held is free.
create table pitwheel.outbox_relay (
    relay       uuid        primary key default gen_random_uuid(),
    name        text        not null,
    source      text        not null,  -- the table that it reads
    strategy    text        not null,  -- shards, advisory or row-lock
    started_at  timestamptz not null default clock_timestamp(),
    lease       interval    not null,
    lease_until timestamptz not null,
    shards      smallint[]             -- the shards that it was told to hold; null: its share of all
) with (fillfactor = 50);

-- Who holds a shard.
create table pitwheel.outbox_shard (
    shard    smallint primary key,
    relay    uuid,                       -- null: none
    lease    uuid,                       -- random for each acquisition: the fence of all writes of its holder
    taken_at timestamptz,
    floor    bigint not null default 0,  -- no event with an id up to this is left, or can still appear
    restart  bigint not null default 0   -- grows when events are put back below the floor: the holder reads from the floor again
) with (fillfactor = 50);
insert into pitwheel.outbox_shard (shard) select n from generate_series(0, 63) as n;

-- Entities that relays hold one by one, with the strategies advisory and row-lock.
create table pitwheel.outbox_claim (
    source     text collate "C" not null,
    entity_key text collate "C" not null,
    relay      uuid not null,
    lease      uuid not null, -- random for each claim: the fence of all writes of its holder
    primary key (source, entity_key)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
create index outbox_claim_relay on pitwheel.outbox_claim (relay);

-- Parked entities: an event was refused for good, and nothing of the entity is sent until an operator has decided.
create table pitwheel.outbox_parked (
    source     text        collate "C" not null default 'pitwheel.outbox',
    entity_key text        collate "C" not null,
    shard      smallint,   -- null: not of pitwheel.outbox
    since      timestamptz not null default clock_timestamp(),
    event_id   bigint      not null, -- the event that was refused
    topic      text        not null,
    reason     text        not null,
    primary key (source, entity_key)
);
create index outbox_parked_shard on pitwheel.outbox_parked (shard);

-- The events of parked entities of pitwheel.outbox: moved here when they are read. Those of other tables stay where they are.
create table pitwheel.outbox_parked_event (
    entity_key text        collate "C" not null,
    id         bigint      not null,
    created_at timestamptz not null,
    topic      text        not null,
    type       text        not null,
    payload    bytea,
    headers    jsonb,
    primary key (entity_key, id)
);
create index outbox_parked_event_id on pitwheel.outbox_parked_event (id);

-- Delivered events, if relays keep them. Partitions are days; old ones are dropped whole. No event gets here that was not delivered, so
-- a drop cannot lose one that was committed late.
create table pitwheel.outbox_sent (
    id         bigint      not null,
    sent_at    timestamptz not null default clock_timestamp(),
    created_at timestamptz not null,
    entity_key text        collate "C" not null,
    topic      text        not null,
    type       text        not null,
    payload    bytea,
    headers    jsonb
) partition by range (sent_at);
create index outbox_sent_id on pitwheel.outbox_sent (id);
-- Rows get here only if the partition of the day was not created in time.
create table pitwheel.outbox_sent_default partition of pitwheel.outbox_sent default;

-- prune_outbox: creates the partitions of today and the coming week, and drops those older than `keep`. Returns how many it dropped.
-- Safe to call from every relay at once. Creates and drops tables, so it runs with the rights of the owner.
create function pitwheel.prune_outbox(keep interval) returns integer
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
set datestyle = 'ISO'
set timezone = 'UTC'
as $$
declare
    day     date;
    part    text;
    dropped integer := 0;
begin
    if not pg_try_advisory_xact_lock(hashtextextended('pitwheel.prune_outbox', 0)) then
        return 0;
    end if;
    for day in
        select now()::date + n from generate_series(0, 7) as n
    loop
        part := 'outbox_sent_' || to_char(day, 'YYYYMMDD');
        continue when to_regclass('pitwheel.' || part) is not null;
        begin
            -- Created beside its parent and attached: `partition of` would take a lock that blocks every acknowledgement.
            execute format('create table pitwheel.%I (like pitwheel.outbox_sent including constraints including defaults)', part);
            execute format('alter table pitwheel.outbox_sent attach partition pitwheel.%I for values from (%L) to (%L)',
                part, day::timestamptz, (day + 1)::timestamptz);
        exception when check_violation then
            -- The default partition has rows of that day already; they stay there until they are too old.
            null;
        end;
    end loop;
    for part in
        select child.relname
        from pg_inherits as inherits
        join pg_class as child on child.oid = inherits.inhrelid
        where inherits.inhparent = 'pitwheel.outbox_sent'::regclass
          and child.relname ~ '^outbox_sent_[0-9]{8}$'
          and to_date(right(child.relname, 8), 'YYYYMMDD') + 1 <= (now() - keep)::date
    loop
        execute format('drop table pitwheel.%I', part);
        dropped := dropped + 1;
    end loop;
    delete from pitwheel.outbox_sent_default where sent_at < now() - keep;
    return dropped;
end
$$;

-- lock_entity: the order guard, for transactions that write events of one entity without locking a row of it first. Until the
-- transaction ends, others that call this for the entity wait; so ids are drawn in the order of the commits. Two transactions that lock
-- two entities in opposite order deadlock: lock them sorted.
create function pitwheel.lock_entity(entity_key text) returns void
language sql volatile
begin atomic
    select pg_advisory_xact_lock(hashtextextended(lock_entity.entity_key, 7236071));
end;

-- add_event: an event, in the caller's own transaction, from any language. Returns its id. A null payload is a tombstone.
-- `ordered` takes the order guard first (lock_entity).
create function pitwheel.add_event(
    entity_key text,
    topic      text,
    type       text,
    payload    bytea,
    headers    jsonb   default null,
    ordered    boolean default false
) returns bigint
language plpgsql
as $$
#variable_conflict use_column
declare
    event_id bigint;
begin
    if coalesce(octet_length(add_event.entity_key), 0) not between 1 and 512 then
        raise exception 'entity key has % bytes, it may have 1 to 512', coalesce(octet_length(add_event.entity_key), 0)
            using errcode = '22023';
    end if;
    if add_event.topic is null or add_event.topic !~ '^[A-Za-z0-9._-]{1,249}$' or add_event.topic in ('.', '..') then
        raise exception 'topic `%` is not legal for Kafka: 1 to 249 letters, digits and . _ -', left(add_event.topic, 80)
            using errcode = '22023';
    end if;
    if coalesce(octet_length(add_event.type), 0) not between 1 and 255 then
        raise exception 'event type has % bytes, it may have 1 to 255', coalesce(octet_length(add_event.type), 0)
            using errcode = '22023';
    end if;
    if octet_length(add_event.payload) > 1000000 then
        raise exception 'payload has % bytes, the limit is 1000000: store it elsewhere and send a reference',
            octet_length(add_event.payload) using errcode = '22023';
    end if;
    if jsonb_typeof(add_event.headers) <> 'object' then
        raise exception 'headers are not a JSON object' using errcode = '22023';
    end if;
    if pg_column_size(add_event.headers) > 32768 then
        raise exception 'headers have % bytes, the limit is 32768', pg_column_size(add_event.headers) using errcode = '22023';
    end if;
    if add_event.ordered then
        perform pitwheel.lock_entity(add_event.entity_key);
    end if;
    -- The id is drawn here, after the lock.
    insert into pitwheel.outbox (entity_key, topic, type, payload, headers)
    values (add_event.entity_key, add_event.topic, add_event.type, add_event.payload, add_event.headers)
    returning id into event_id;
    return event_id;
end
$$;

-- The same with a payload of text, in UTF-8.
create function pitwheel.add_event(
    entity_key text, topic text, type text, payload text, headers jsonb default null, ordered boolean default false
) returns bigint
language sql volatile
return pitwheel.add_event(entity_key, topic, type, convert_to(payload, 'UTF8'), headers, ordered);

-- The same with a payload of JSON.
create function pitwheel.add_event(
    entity_key text, topic text, type text, payload jsonb, headers jsonb default null, ordered boolean default false
) returns bigint
language sql volatile
return pitwheel.add_event(entity_key, topic, type, convert_to(payload::text, 'UTF8'), headers, ordered);

-- unpark: ends the parking of entities of a source. `how` is `retry`: their events are sent again; `skip`: without the refused one; `drop`:
-- none of those that wait. Events that are put back keep their ids. Returns a row for each entity that was parked, with the number of
-- events put back. Events of other sources stay in their tables, so there is only `retry` for these.
-- The shards are locked first: their holders move events behind parked ones (park.sql), and the second statement sees what they moved.
create function pitwheel.unpark(source text, entity_keys text[], how text, actor text)
returns table (entity_key text, events bigint)
language plpgsql
as $$
#variable_conflict use_column
begin
    if unpark.how not in ('retry', 'skip', 'drop') then
        raise exception 'unpark `%` is not known: retry, skip or drop', unpark.how using errcode = '22023';
    end if;
    if unpark.how <> 'retry' and unpark.source <> 'pitwheel.outbox' then
        raise exception 'the events of `%` stay in its table: change the refused one there, then retry', unpark.source
            using errcode = '22023';
    end if;
    perform from pitwheel.outbox_shard
    where outbox_shard.shard in (
        select parked.shard
        from pitwheel.outbox_parked as parked
        where parked.source = unpark.source and parked.entity_key = any (unpark.entity_keys)
    )
    order by outbox_shard.shard
    for update;
    return query
    with ended as (
        delete from pitwheel.outbox_parked as parked
        where parked.source = unpark.source and parked.entity_key = any (unpark.entity_keys)
        returning parked.entity_key, parked.shard, parked.event_id
    ),
    gone as (
        delete from pitwheel.outbox_parked_event as event
        using ended
        where event.entity_key = ended.entity_key and ended.shard is not null
        returning event.entity_key, event.id, event.created_at, event.topic, event.type, event.payload, event.headers,
            event.id = ended.event_id as refused
    ),
    -- With the strategies advisory and row-lock, events of parked entities stay in the outbox.
    dropped as (
        delete from pitwheel.outbox as event
        using ended
        where event.shard = ended.shard
          and event.entity_key = ended.entity_key
          and (unpark.how = 'skip' and event.id = ended.event_id or unpark.how = 'drop')
    ),
    back as (
        insert into pitwheel.outbox (id, created_at, entity_key, topic, type, payload, headers)
        overriding system value
        select gone.id, gone.created_at, gone.entity_key, gone.topic, gone.type, gone.payload, gone.headers
        from gone
        where unpark.how = 'retry' or unpark.how = 'skip' and not gone.refused
        order by gone.id
        returning outbox.id, outbox.shard, outbox.entity_key
    ),
    changed as (
        update pitwheel.outbox_shard as shard
        set restart = shard.restart + 1,
            floor = least(shard.floor, (select min(back.id) - 1 from back where back.shard = shard.shard))
        where shard.shard in (select ended.shard from ended)
    ),
    audited as (
        insert into pitwheel.audit (actor, action, subject)
        select unpark.actor, 'outbox.' || unpark.how, left(ended.entity_key, 200)
        from ended
    )
    select ended.entity_key::text, (select count(*) from back where back.entity_key = ended.entity_key)
    from ended;
end
$$;

-- replay: puts delivered events back, to be delivered again, up to `most` of those from the id `first_id` and the time `since` (of their
-- delivery) on, oldest first; with `only_key`, those of one entity. They keep their ids. Returns the last id that was put back and how many
-- were; null and 0: none is left.
create function pitwheel.replay(first_id bigint, since timestamptz, only_key text, most integer, actor text)
returns table (last_id bigint, events bigint)
language plpgsql
as $$
#variable_conflict use_column
begin
    -- All of them, in the order of unpark: which ones are concerned is known only later.
    perform from pitwheel.outbox_shard order by outbox_shard.shard for update;
    return query
    with found as materialized (
        select sent.id, sent.sent_at
        from pitwheel.outbox_sent as sent
        where sent.id >= coalesce(replay.first_id, 0)
          and sent.sent_at >= coalesce(replay.since, '-infinity')
          and (replay.only_key is null or sent.entity_key = replay.only_key)
        order by sent.id
        limit replay.most
    ),
    gone as (
        delete from pitwheel.outbox_sent as sent
        using found
        where sent.id = found.id and sent.sent_at = found.sent_at
        returning sent.id, sent.created_at, sent.entity_key, sent.topic, sent.type, sent.payload, sent.headers
    ),
    back as (
        insert into pitwheel.outbox (id, created_at, entity_key, topic, type, payload, headers)
        overriding system value
        select distinct on (gone.id) gone.id, gone.created_at, gone.entity_key, gone.topic, gone.type, gone.payload, gone.headers
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
        select replay.actor, 'outbox.replay', min(back.id) || ' to ' || max(back.id)
        from back
        having count(*) > 0
    )
    select max(found.id), count(*) from found;
end
$$;

select pitwheel.prune_outbox('100 years');
