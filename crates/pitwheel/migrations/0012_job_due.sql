-- job_due ends with `+id` instead of the id, so that only job_pkey can be used to find a job by its id.
--
-- Once job was vacuumed while it was empty, a scan of all of job_due costs the planner as much as a probe of job_pkey. Which one
-- it takes depends on the heights of the two indexes, and a session plans with the heights that it saw when it last read them.
drop index pitwheel.job_due;
create index job_due on pitwheel.job (queue, priority, run_at, (+id));
