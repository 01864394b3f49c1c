-- demo_left.sql: how many jobs of the demo's queue are live. Leans on job_due; the queue is the demo's own.
select count(*)
from pitwheel.job
where job.queue = $1
