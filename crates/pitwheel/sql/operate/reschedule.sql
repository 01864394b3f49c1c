-- reschedule.sql: waiting jobs are due at another time. A blocked job stays blocked, and runs not before that time. A time in the
-- past, or none, means now: claims rely on it that no job gets a run_at far in the past (cursor.rs). The
-- recurring job of a run gets the time, too; recurring jobs are locked before jobs, as in 0005_recurring.sql.
-- Each job is found by one probe of job_pkey: with `limit 1` the planner cannot join the batch with a scan of the whole index.
-- The update names the ids twice: the array is the index condition, and the join makes the order of job_pkey useful, so that
-- no plan reads all of job_pkey, once the table was analyzed without rows.
-- No row for an id: no waiting job has it.
with target as materialized (
    select job.id, job.state
    from (select distinct asked.id from unnest($1::bigint[]) as asked(id) order by asked.id) as asked
    cross join lateral (
        select job.id, pitwheel.state_of(job.*) as state
        from pitwheel.job
        where job.id = asked.id
          and job.holder is null
          and (select pitwheel.lock_recurring_of_jobs($1::bigint[]))
        limit 1
        for no key update
    ) as job
),
moved as (
    update pitwheel.job
    set run_at = case when job.run_at = 'infinity' then job.run_at else greatest($2::timestamptz, clock_timestamp()) end,
        lane_at = case when job.run_at = 'infinity' then greatest($2::timestamptz, clock_timestamp()) end,
        anchor_at = null
    from target
    where job.id = any (array(select target.id from target))
      and job.id = target.id
    returning job.id, job.queue, coalesce(job.lane_at, job.run_at) as run_at, job.recurring, target.state, job.lane
),
-- Among jobs that let others pass, another one may come first now.
checked as (
    insert into pitwheel.lane_check (xid, lane)
    select pg_current_xact_id(), moved.lane from moved where moved.lane is not null
    on conflict (xid, lane) do nothing
),
mirrored as materialized (
    select pitwheel.move_run(moved.recurring, moved.state, moved.run_at, 'rescheduled')
    from moved
    where moved.recurring is not null
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
where (select count(*) from mirrored) >= 0
