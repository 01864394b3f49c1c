-- in_flight.sql: the running jobs by queue, and how long the longest has been running. Costs what is running; counts up to
-- 50,000.
select job.queue, count(*) as jobs,
    coalesce(max(extract(epoch from now() - job.claimed_at)), 0)::float8 as longest_seconds
from (
    select held.id, hold.worker
    from pitwheel.hold
    cross join unnest(hold.job_ids) as held(id)
    limit 50000
) as held
cross join lateral (
    select job.queue, job.claimed_at
    from pitwheel.job
    where job.id = held.id and job.holder = held.worker
    limit 1 -- one index probe per job: the cost is bound to what is running
) as job
group by job.queue
