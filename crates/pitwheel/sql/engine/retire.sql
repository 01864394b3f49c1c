-- retire.sql: the worker ends of its own accord. What it may still hold is taken back at the next sweep.
update pitwheel.worker
set dead_at = clock_timestamp()
where worker.id = $1
  and worker.dead_at is null
