-- cancel_requests.sql: the running jobs of these workers whose cancel was requested. Uses job_cancel, which has no other jobs.
select job.holder, job.id, job.fence
from pitwheel.job
where job.cancel_requested_at is not null
  and job.holder = any($1::bigint[])
