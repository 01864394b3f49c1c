-- demo_live.sql: the number of live jobs in the demo's queue. Uses the index job_due.
select count(*)
from pitwheel.job
where job.queue = $1
