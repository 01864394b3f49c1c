-- enqueue_one.sql: adds one job without a key, as enqueue.sql does. Most enqueues are of one job, and columns of one value would have to
-- be unnested.
insert into pitwheel.job (kind, payload, queue, run_at, enqueued_at, priority, max_attempts, timeout_ms, metadata)
values (
    $1::text, $2::text::json, $3::text,
    case when $4::bigint = 0 and $5::bigint is null then clock_timestamp()
    else greatest(
        timestamptz 'epoch' + $5::bigint * interval '1 microsecond',
        clock_timestamp() + $4::bigint * interval '1 millisecond'
    ) end,
    clock_timestamp(), $6::smallint, $7::int, $8::bigint, $9::text::json
)
returning id, true as is_new
