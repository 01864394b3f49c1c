-- retire.sql: the worker signs off. What it may still hold is released by the next sweep.
-- Zero rows: it was declared dead, or has signed off before.
update pitwheel.worker
set dead_at = clock_timestamp()
where worker.id = $1
  and worker.dead_at is null
returning worker.transport
