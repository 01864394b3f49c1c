-- claims_of_token.sql: which of these claims are held by workers that connected with this token.
-- A job is found by a range of one id, in the order of ids: only job_pkey has that order. With `=` a plan could read all of
-- job_due, which ends with the id, once the table was analyzed without rows.
select job.id, job.fence
from unnest($1::bigint[], $2::bigint[]) as claim(id, fence)
cross join lateral (
    select job.id, job.fence, job.holder
    from pitwheel.job
    where job.id >= claim.id
      and job.id <= claim.id
      and job.fence = claim.fence
    order by job.id
    limit 1
) as job
join pitwheel.worker on worker.id = job.holder
where worker.token = $3
