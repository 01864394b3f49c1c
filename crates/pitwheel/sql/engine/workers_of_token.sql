-- workers_of_token.sql: which of these workers connected with this token.
select worker.id
from pitwheel.worker
where worker.id = any($1::bigint[])
  and worker.token = $2
