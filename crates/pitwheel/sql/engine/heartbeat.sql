-- heartbeat.sql: moves the leases of many workers on, says which of their jobs somebody asked to cancel, and whether
-- they shall end.
-- One row or more for each that lives; a worker without a row was declared dead.
-- Locked by id first: an update locks rows in the order in which its plan finds them, and a sweep or another node's heartbeat
-- may find them in another.
with living as materialized (
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
    from living
    where worker.id = living.id
    returning worker.id, worker.drain_at is not null as drain
)
select renewed.id as worker, renewed.drain, job.id, job.fence
from renewed
left join pitwheel.job on job.holder = renewed.id and job.cancel_requested_at is not null
