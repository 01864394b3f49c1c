-- renew.sql: moves the worker's lease on, for all it holds. Late is not too late: only the sweep ends a lease.
-- The row says whether the worker shall end.
-- Zero rows: the worker was declared dead, and its jobs are given to others.
update pitwheel.worker
set lease_until = clock_timestamp() + worker.lease
where worker.id = $1
  and worker.dead_at is null
returning worker.drain_at is not null as drain
