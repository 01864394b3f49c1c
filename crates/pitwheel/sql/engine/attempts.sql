-- attempts.sql: the attempts of these claims, the names of their workers, whether a cancel was requested, the recurring jobs of
-- runs, and where the rows are.
-- No row: the claim no longer holds the job.
-- A holder of 0 is not known, and then not compared.
-- A job is found by a range of one id, in the order of ids: only job_pkey has that order. With `=` a plan could read all of
-- job_due, which ends with the id, once the table was analyzed without rows.
select job.id, job.attempt, job.max_attempts, job.cancel_requested_at is not null as cancelled, worker.name,
    job.recurring, job.claimed_at, job.tid
from unnest($1::bigint[], $2::bigint[], $3::bigint[]) as claim(id, fence, holder)
cross join lateral (
    select job.id, job.attempt, job.max_attempts, job.cancel_requested_at, job.holder, job.recurring, job.claimed_at,
        job.ctid as tid
    from pitwheel.job
    where job.id >= claim.id
      and job.id <= claim.id
      and job.fence = claim.fence
      and job.holder = coalesce(nullif(claim.holder, 0), job.holder)
    order by job.id
    limit 1
) as job
join pitwheel.worker on worker.id = job.holder
