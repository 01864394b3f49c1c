-- claims_of_token.sql: which of these claims are held by workers that connected with this token.
-- A holder of 0 is not known, and then not compared.
-- Each job is found by one probe of job_pkey: with `limit 1` the planner cannot join the batch with a scan of the whole index.
select claim.id, claim.fence, claim.holder
from unnest($1::bigint[], $2::bigint[], $3::bigint[]) as claim(id, fence, holder)
cross join lateral (
    select job.holder
    from pitwheel.job
    where job.id = claim.id
      and job.fence = claim.fence
      and job.holder = coalesce(nullif(claim.holder, 0), job.holder)
    limit 1
) as job
join pitwheel.worker on worker.id = job.holder
where worker.token = $4
