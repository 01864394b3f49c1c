-- enqueue_keyed.sql: adds jobs, some with keys or lanes; one row is returned for each, in the order given.
-- With $13, the lanes are promoted in the same statement; not in a user's transaction, in which the lanes would stay locked.
-- The insert comes first, because promote_lanes needs its result.
-- If a live job of the kind has the key, that job is returned (`is_new` false) and nothing is changed. Inserts in the order of
-- kind and key, so that two such batches cannot deadlock. Uses job_key.
-- A null id: the job with the same key was committed or finished while this ran; the caller sends the job again.
with input as materialized (
    select nextval('pitwheel.job_id_seq') as id, job.kind, job.payload, job.queue, job.delay_ms,
        job.run_at_us, job.priority, job.max_attempts, job.timeout_ms, job.metadata, job.key, job.lane,
        job.lane_pass, job.n
    from unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::smallint[], $7::int[],
        $8::bigint[], $9::text[], $10::text[], $11::text[], $12::bool[]) with ordinality
        as job(kind, payload, queue, delay_ms, run_at_us, priority, max_attempts, timeout_ms, metadata, key, lane, lane_pass, n)
),
added as (
    insert into pitwheel.job (
        id, kind, payload, queue, run_at, enqueued_at, priority, max_attempts, timeout_ms, metadata, key, lane,
        lane_pass
    )
    select input.id, input.kind, input.payload::json, input.queue,
        greatest(
            timestamptz 'epoch' + input.run_at_us * interval '1 microsecond',
            clock_timestamp() + input.delay_ms * interval '1 millisecond'
        ),
        clock_timestamp(), input.priority, input.max_attempts, input.timeout_ms, input.metadata::json, input.key,
        input.lane, nullif(input.lane_pass, false)
    from input
    order by input.kind, input.key, input.n
    on conflict (kind, key) where key is not null do nothing
    returning job.id, job.kind, job.key, job.lane
),
promoted as materialized (
    select pitwheel.promote_lanes(array(select distinct added.lane from added where added.lane is not null))
    where $13::bool
)
select coalesce(added.id, twin.id, live.id) as id, added.id is not null as is_new
from input
left join added on added.id = input.id
left join added as twin on added.id is null and twin.kind = input.kind and twin.key = input.key
left join lateral (
    select job.id
    from pitwheel.job
    where added.id is null and job.kind = input.kind and job.key = input.key
    limit 1 -- one index probe per job: a join could be planned as a scan of the whole of job_key
) as live on true
where (select count(*) from promoted) >= 0
order by input.n
