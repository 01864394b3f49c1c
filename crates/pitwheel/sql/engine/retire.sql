-- retire.sql: the worker signs off. What it may still hold is released by the next sweep.
update pitwheel.worker
set dead_at = clock_timestamp()
where worker.id = $1
  and worker.dead_at is null
