-- wanted_stopped.sql: the jobs this worker runs that somebody asked to cancel. Leans on job_cancel, which holds no others.
select job.id, job.fence
from pitwheel.job
where job.cancel_requested_at is not null
  and job.holder = $1
