-- alive_workers.sql: which of these workers are alive. A worker without a row was declared dead, or has signed off.
select worker.id
from pitwheel.worker
where worker.id = any($1::bigint[])
  and worker.dead_at is null
