-- heartbeat.sql: renews the leases of many workers; returns which of them are to drain. Reads no jobs: a renewal waits for nothing else.
-- One row for each worker that is alive; a worker without a row was declared dead. `drain` is null: another transaction has
-- locked the worker, or has changed it just now, and its lease was not renewed. It is not waited for, so that the others keep
-- their leases; the sweep does not count that time.
with alive as materialized (
    select worker.id
    from pitwheel.worker
    where worker.id = any($1::bigint[])
      and worker.dead_at is null
),
free as materialized (
    select worker.id
    from pitwheel.worker
    where worker.id = any($1::bigint[])
      and worker.dead_at is null
    for no key update skip locked
),
renewed as (
    update pitwheel.worker
    set lease_until = clock_timestamp() + worker.lease
    from free
    where worker.id = free.id
    returning worker.id, worker.drain_at is not null as drain
)
select alive.id as worker, renewed.drain
from alive
left join renewed on renewed.id = alive.id
