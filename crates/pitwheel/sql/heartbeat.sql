-- heartbeat.sql: moves the leases of many workers on, and says which of their jobs somebody asked to cancel.
-- One row or more for each that lives; a worker without a row was declared dead.
with renewed as (
    update pitwheel.worker
    set lease_until = clock_timestamp() + worker.lease
    where worker.id = any($1::bigint[])
      and worker.dead_at is null
    returning worker.id
)
select renewed.id as worker, job.id, job.fence
from renewed
left join pitwheel.job on job.holder = renewed.id and job.cancel_requested_at is not null
