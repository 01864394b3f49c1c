-- reschedule.sql: waiting jobs are due at another time. A time in the past, or none, means now: claims rely on it that no
-- job gets a run_at far in the past (cursor.rs).
-- No row for an id: no waiting job has it.
with target as materialized (
    select job.id
    from pitwheel.job
    where job.id = any($1::bigint[])
      and job.holder is null
    order by job.id
    for no key update
),
moved as (
    update pitwheel.job
    set run_at = greatest($2::timestamptz, clock_timestamp())
    from target
    where job.id = target.id
    returning job.id, job.queue, job.run_at
),
audited as (
    insert into pitwheel.audit (actor, action, subject, job_ids)
    select $3, 'job.reschedule', to_char(max(moved.run_at) at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
        array_agg(moved.id)
    from moved
    having count(*) > 0
)
select moved.id, moved.queue
from moved
