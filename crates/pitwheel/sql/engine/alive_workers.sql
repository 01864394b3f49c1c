-- alive_workers.sql: which of these workers are alive, and whether they get no more jobs, because they are quiet or draining.
-- A worker without a row was declared dead, or has signed off. Uses worker_pkey.
select worker.id, worker.quiet_at is not null as quiet
from pitwheel.worker
where worker.id = any($1::bigint[])
  and worker.dead_at is null
