-- held.sql: the jobs that these workers hold. Uses hold_worker. A hold of which nothing is held any more has one row of nulls.
select hold.id as hold, hold.worker, job.id, job.fence
from pitwheel.hold
left join lateral (
    select job.id, job.fence
    from unnest(hold.job_ids) as held(id)
    join pitwheel.job on job.id = held.id
    where job.holder = hold.worker
) as job on true
where hold.worker = any($1::bigint[])
