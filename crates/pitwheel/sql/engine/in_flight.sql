-- in_flight.sql: what runs, by queue, and for how long the longest does. Costs what is in flight; counts up to 50,000.
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
    limit 1 -- by its id, one at a time: nothing else costs what is in flight
) as job
group by job.queue
