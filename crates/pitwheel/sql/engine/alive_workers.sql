-- alive_workers.sql: which of these workers live. A worker without a row was declared dead, or has ended.
select worker.id
from pitwheel.worker
where worker.id = any($1::bigint[])
  and worker.dead_at is null
