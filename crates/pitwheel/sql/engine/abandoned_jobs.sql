-- abandoned_jobs.sql: the jobs that dead workers still hold, a page of holds at a time, oldest first, above the hold $2.
-- Uses hold_worker: it costs what the dead workers held. The writes that follow are fenced. A row that another transaction has
-- locked (a settle in a user's transaction) is skipped, so that one open transaction cannot stop the sweep.
with holds as materialized (
    select hold.id, hold.worker, hold.job_ids, worker.name
    from pitwheel.worker
    join pitwheel.hold on hold.worker = worker.id
    where worker.dead_at is not null
      and hold.id > $2
    order by hold.id
    limit $1
)
select holds.id as hold, holds.name as worker, job.id, job.fence, job.crashes, job.attempt
from holds
cross join lateral unnest(holds.job_ids) as held(id)
left join lateral (
    select job.id, job.fence, job.crashes, job.attempt
    from pitwheel.job
    where job.id = held.id and job.holder = holds.worker
    for no key update skip locked
) as job on true
