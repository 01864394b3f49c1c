-- enqueue.sql: adds jobs without keys, one row back for each, in the order given.
-- A time in the past, or none, is the moment of the insert: what claims rely on is that nothing is inserted far behind
-- the clock (cursor.rs).
with input as materialized (
    select nextval('pitwheel.job_id_seq') as id, job.kind, job.payload, job.queue, job.delay_ms,
        job.run_at_us, job.priority, job.max_attempts, job.timeout_ms, job.metadata, job.n
    from unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::smallint[], $7::int[],
        $8::bigint[], $9::text[]) with ordinality
        as job(kind, payload, queue, delay_ms, run_at_us, priority, max_attempts, timeout_ms, metadata, n)
),
added as (
    insert into pitwheel.job (id, kind, payload, queue, run_at, enqueued_at, priority, max_attempts, timeout_ms, metadata)
    select input.id, input.kind, input.payload::json, input.queue,
        greatest(
            timestamptz 'epoch' + input.run_at_us * interval '1 microsecond',
            clock_timestamp() + input.delay_ms * interval '1 millisecond'
        ),
        clock_timestamp(), input.priority, input.max_attempts, input.timeout_ms, input.metadata::json
    from input
)
select input.id, true as is_new
from input
order by input.n
