-- workers.sql: workers, newest first, one page at a time; workers that ended are kept for a day.
-- The jobs of a worker are counted up to 1,000.
with page as materialized (
    select worker.id, worker.name, worker.transport, worker.queues, worker.kinds, worker.slots, worker.started_at,
        worker.lease_until, worker.quiet_at, worker.drain_at, worker.dead_at
    from pitwheel.worker
    where worker.id < $1
      and ($2 or worker.dead_at is null)
    order by worker.id desc
    limit $3
)
select page.id, page.name, page.transport, page.queues, page.kinds, page.slots, page.started_at, page.lease_until,
    page.quiet_at, page.drain_at, page.dead_at, held.running
from page
cross join lateral (
    select count(*) as running
    from (
        select
        from pitwheel.hold
        cross join unnest(hold.job_ids) as held(id)
        cross join lateral (
            select
            from pitwheel.job
            where job.id = held.id and job.holder = page.id
            limit 1
        ) as job
        where hold.worker = page.id
        limit 1000
    ) as counted
) as held
order by page.id desc
