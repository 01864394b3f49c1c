-- claims_of_token.sql: which of these claims are held by workers that connected with this token.
select job.id, job.fence
from unnest($1::bigint[], $2::bigint[]) as claim(id, fence)
join pitwheel.job on job.id = claim.id and job.fence = claim.fence
join pitwheel.worker on worker.id = job.holder
where worker.token = $3
