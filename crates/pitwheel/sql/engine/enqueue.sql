-- enqueue.sql: adds jobs without keys; the ids are returned in the order given.
-- A time in the past, or none, means the time of the insert: claims rely on it that no job gets a run_at
-- far in the past (cursor.rs).
-- Unnests in the select list, which yields one row after the other, in order; in a from clause all rows are stored first.
insert into pitwheel.job (kind, payload, queue, run_at, enqueued_at, priority, max_attempts, timeout_ms, metadata)
select input.kind, input.payload::json, input.queue,
    case when input.delay_ms = 0 and input.run_at_us is null then clock_timestamp()
    else greatest(
        timestamptz 'epoch' + input.run_at_us * interval '1 microsecond',
        clock_timestamp() + input.delay_ms * interval '1 millisecond'
    ) end,
    clock_timestamp(), input.priority, input.max_attempts, input.timeout_ms, input.metadata::json
from (
    select unnest($1::text[]) as kind, unnest($2::text[]) as payload, unnest($3::text[]) as queue,
        unnest($4::bigint[]) as delay_ms, unnest($5::bigint[]) as run_at_us, unnest($6::smallint[]) as priority,
        unnest($7::int[]) as max_attempts, unnest($8::bigint[]) as timeout_ms, unnest($9::text[]) as metadata
) as input
returning id, true as is_new
