-- quiet_workers.sql: which of these workers get no more jobs, because they are quiet or draining. Uses worker_pkey.
select worker.id
from pitwheel.worker
where worker.id = any($1::bigint[])
  and worker.quiet_at is not null
