-- held.sql: the jobs that these workers hold. Uses hold_worker. A hold of which nothing is held any more has one row of nulls.
-- Each job is found by one probe of job_pkey: with `limit 1` the planner cannot join the batch with a scan of the whole index.
select hold.id as hold, hold.worker, job.id, job.fence
from pitwheel.hold
left join lateral (
    select job.id, job.fence
    from unnest(hold.job_ids) as held(id)
    cross join lateral (
        select job.id, job.fence
        from pitwheel.job
        where job.id = held.id
          and job.holder = hold.worker
        limit 1
    ) as job
) as job on true
where hold.worker = any($1::bigint[])
