-- heartbeat.sql: renews the leases of many workers; returns the cancel requests of their jobs, and which workers are to drain.
-- One row or more for each worker that is alive; a worker without a row was declared dead.
-- Locks by id first: an update locks rows in the order of its plan, and a sweep or the heartbeat of another node may use another
-- order, which would deadlock.
with alive as materialized (
    select worker.id
    from pitwheel.worker
    where worker.id = any($1::bigint[])
      and worker.dead_at is null
    order by worker.id
    for no key update
),
renewed as (
    update pitwheel.worker
    set lease_until = clock_timestamp() + worker.lease
    from alive
    where worker.id = alive.id
    returning worker.id, worker.drain_at is not null as drain
)
select renewed.id as worker, renewed.drain, job.id, job.fence
from renewed
left join pitwheel.job on job.holder = renewed.id and job.cancel_requested_at is not null
