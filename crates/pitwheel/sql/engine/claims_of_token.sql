-- claims_of_token.sql: which of these claims are held by workers that connected with this token.
-- A holder of 0 is not known, and then not compared.
-- A job is found by a range of one id, in the order of ids: only job_pkey has that order. With `=` a plan could read all of
-- job_due, which ends with the id, once the table was analyzed without rows.
select claim.id, claim.fence, claim.holder
from unnest($1::bigint[], $2::bigint[], $3::bigint[]) as claim(id, fence, holder)
cross join lateral (
    select job.holder
    from pitwheel.job
    where job.id >= claim.id
      and job.id <= claim.id
      and job.fence = claim.fence
      and job.holder = coalesce(nullif(claim.holder, 0), job.holder)
    order by job.id
    limit 1
) as job
join pitwheel.worker on worker.id = job.holder
where worker.token = $4
