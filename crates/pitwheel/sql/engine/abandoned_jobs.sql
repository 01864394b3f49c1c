-- abandoned_jobs.sql: the jobs that dead workers still hold, a page of holds at a time, oldest first, above the hold $2.
-- Uses hold_worker: it costs what the dead workers held. `offset 0` keeps the order by id out of the probe of a worker, which
-- could otherwise become a scan of hold_pkey, past the holds of all workers.
-- The writes that follow are fenced. A row that another transaction has locked (a settle in a user's transaction) is skipped,
-- so that one open transaction cannot stop the sweep.
-- Each job is found by one probe of job_pkey: with `limit 1` the planner cannot join the batch with a scan of the whole index.
with holds as materialized (
    select hold.id, worker.id as worker, hold.job_ids, worker.name
    from pitwheel.worker
    cross join lateral (
        select hold.id, hold.job_ids
        from pitwheel.hold
        where hold.worker = worker.id
        offset 0
    ) as hold
    where worker.dead_at is not null
      and hold.id > $2
    order by hold.id
    limit $1
)
select holds.id as hold, holds.worker as holder, holds.name as worker, job.id, job.fence, job.crashes, job.attempt
from holds
cross join lateral unnest(holds.job_ids) as held(id)
left join lateral (
    select job.id, job.fence, job.crashes, job.attempt
    from pitwheel.job
    where job.id = held.id
      and job.holder = holds.worker
    limit 1
    for no key update skip locked
) as job on true
