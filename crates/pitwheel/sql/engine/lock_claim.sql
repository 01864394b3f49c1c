-- lock_claim.sql: waits for the claimed job's row, in the caller's own transaction; finish.sql does not. Returns the recurring job
-- that it is a run of. That is locked first, and so is the pipeline of a step: who changes one of them locks it before its job.
-- A holder of 0 is not known, and then not compared.
select job.recurring
from pitwheel.job
where job.id = $1
  and job.fence = $2
  and job.holder = coalesce(nullif($3::bigint, 0), job.holder)
  and (select pitwheel.lock_recurring_of_jobs(array[$1]))
for update
