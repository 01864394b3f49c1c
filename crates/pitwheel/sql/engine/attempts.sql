-- attempts.sql: the attempts of these claims, the names of their workers, and whether a cancel was requested.
-- No row: the claim no longer holds the job.
select job.id, job.attempt, job.max_attempts, job.cancel_requested_at is not null as cancelled, worker.name
from unnest($1::bigint[], $2::bigint[]) as claim(id, fence)
join pitwheel.job on job.id = claim.id and job.fence = claim.fence
join pitwheel.worker on worker.id = job.holder
