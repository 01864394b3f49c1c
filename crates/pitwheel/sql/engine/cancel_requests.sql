-- cancel_requests.sql: the jobs these workers run that somebody asked to cancel. Leans on job_cancel, which holds no others.
select job.holder, job.id, job.fence
from pitwheel.job
where job.cancel_requested_at is not null
  and job.holder = any($1::bigint[])
