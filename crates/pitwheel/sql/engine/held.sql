-- held.sql: the jobs that these workers hold. Uses hold_worker. A hold of which nothing is held any more has one row of nulls.
-- A job is found by a range of one id, in the order of ids: only job_pkey has that order. With `=` a plan could read all of
-- job_due, which ends with the id, once the table was analyzed without rows.
select hold.id as hold, hold.worker, job.id, job.fence
from pitwheel.hold
left join lateral (
    select job.id, job.fence
    from unnest(hold.job_ids) as held(id)
    cross join lateral (
        select job.id, job.fence
        from pitwheel.job
        where job.id >= held.id
          and job.id <= held.id
          and job.holder = hold.worker
        order by job.id
        limit 1
    ) as job
) as job on true
where hold.worker = any($1::bigint[])
