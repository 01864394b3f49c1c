-- renew.sql: renews the worker's lease, for all it holds. An expired lease can be renewed: only the sweep ends a lease.
-- Returns whether the worker is to drain.
-- Zero rows: the worker was declared dead, and its jobs are given to others.
update pitwheel.worker
set lease_until = clock_timestamp() + worker.lease
where worker.id = $1
  and worker.dead_at is null
returning worker.drain_at is not null as drain
