-- create_recurring.sql: creates recurring jobs, or enables and changes those that exist; one row for each, in the order given.
-- Those that exist are locked first, in the order of their ids, as by every batch of changes, and new ones are made in the order of
-- kind and key: so no two batches can deadlock. Uses recurring_key and recurring_pkey.
with input as materialized (
    select new.kind, new.key, new.cadence, new.payload::json as payload, new.misfire, new.queue, new.priority, new.max_attempts,
        new.timeout_ms * interval '1 millisecond' as timeout, new.metadata::json as metadata,
        timestamptz 'epoch' + new.first_run_us * interval '1 microsecond' as first_run_at,
        timestamptz 'epoch' + new.first_anchor_us * interval '1 microsecond' as first_anchor_at,
        timestamptz 'epoch' + new.changed_run_us * interval '1 microsecond' as changed_run_at,
        timestamptz 'epoch' + new.changed_anchor_us * interval '1 microsecond' as changed_anchor_at,
        new.interval_ms, new.n
    from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::int[], $8::int[], $9::bigint[],
        $10::text[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[], $15::bigint[]) with ordinality
        as new(kind, key, cadence, payload, misfire, queue, priority, max_attempts, timeout_ms, metadata, first_run_us,
            first_anchor_us, changed_run_us, changed_anchor_us, interval_ms, n)
    order by new.kind, new.key, new.n
),
locked as materialized (
    select recurring.id
    from pitwheel.recurring
    where recurring.id = any (array(
        select known.id
        from input
        cross join lateral (
            select recurring.id
            from pitwheel.recurring
            where recurring.kind = input.kind
              and recurring.key = input.key
            limit 1
        ) as known
    ))
    order by recurring.id
    for no key update
),
made as materialized (
    select input.n, input.kind, input.key, input.queue, made.id, made.is_new, made.changed, made.next_run_at, made.reason
    from input
    cross join lateral pitwheel.create_recurring(
        input.kind, input.key, input.cadence, input.payload, input.misfire, input.queue, input.priority, input.max_attempts,
        input.timeout, input.metadata, input.first_run_at, input.first_anchor_at, input.changed_run_at,
        input.changed_anchor_at, input.interval_ms
    ) as made
    where (select count(*) from locked) >= 0
),
audited as (
    insert into pitwheel.audit (actor, action, subject)
    select $16, 'recurring.create', made.kind || ' ' || made.key
    from made
    where made.changed
      and $16::text is not null
)
select made.id, made.is_new, (extract(epoch from made.next_run_at) * 1000000)::bigint as next_us, made.reason, made.queue,
    coalesce(made.next_run_at <= clock_timestamp(), false) as due
from made
order by made.n
