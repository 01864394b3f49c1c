-- lock_claim.sql: waits for the claimed job's row, in the caller's own transaction; finish.sql does not. Returns the recurring job
-- that it is a run of. That is locked first: who changes a recurring job locks it before its job.
-- A holder of 0 is not known, and then not compared.
-- A job is found by a range of one id, in the order of ids: only job_pkey has that order. With `=` a plan could read all of
-- job_due, which ends with the id, once the table was analyzed without rows.
select job.recurring
from pitwheel.job
where job.id >= $1
  and job.id <= $1
  and job.fence = $2
  and job.holder = coalesce(nullif($3::bigint, 0), job.holder)
  and (select pitwheel.lock_recurring_of_jobs(array[$1]))
order by job.id
limit 1
for update
