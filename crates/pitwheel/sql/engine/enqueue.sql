-- enqueue.sql: adds jobs without keys; the ids are returned in the order given.
-- A time in the past, or none, means the time of the insert: claims rely on it that no job gets a run_at
-- far in the past (cursor.rs).
insert into pitwheel.job (kind, payload, queue, run_at, enqueued_at, priority, max_attempts, timeout_ms, metadata)
select input.kind, input.payload::json, input.queue,
    case when input.delay_ms = 0 and input.run_at_us is null then clock_timestamp()
    else greatest(
        timestamptz 'epoch' + input.run_at_us * interval '1 microsecond',
        clock_timestamp() + input.delay_ms * interval '1 millisecond'
    ) end,
    clock_timestamp(), input.priority, input.max_attempts, input.timeout_ms, input.metadata::json
from unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::smallint[], $7::int[], $8::bigint[],
    $9::text[]) with ordinality
    as input(kind, payload, queue, delay_ms, run_at_us, priority, max_attempts, timeout_ms, metadata, n)
order by input.n
returning id, true as is_new
