-- attempts.sql: the attempts of these claims, the names of their workers, whether a cancel was requested, the recurring jobs of
-- runs, where the rows are, the queue and the kind of each job, and the seconds since its claim.
-- No row: the claim no longer holds the job.
-- A holder of 0 is not known, and then not compared.
-- Each job is found by one probe of job_pkey: with `limit 1` the planner cannot join the batch with a scan of the whole index.
select job.id, job.attempt, job.max_attempts, job.cancel_requested_at is not null as cancelled, worker.name,
    job.recurring, job.claimed_at, job.tid, job.queue, job.kind,
    coalesce(extract(epoch from clock_timestamp() - job.claimed_at), 0)::double precision as age
from unnest($1::bigint[], $2::bigint[], $3::bigint[]) as claim(id, fence, holder)
cross join lateral (
    select job.id, job.attempt, job.max_attempts, job.cancel_requested_at, job.holder, job.recurring, job.claimed_at,
        job.ctid as tid, job.queue, job.kind
    from pitwheel.job
    where job.id = claim.id
      and job.fence = claim.fence
      and job.holder = coalesce(nullif(claim.holder, 0), job.holder)
    limit 1
) as job
join pitwheel.worker on worker.id = job.holder
