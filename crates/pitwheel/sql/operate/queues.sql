-- queues.sql: queues that have live jobs or settings (`*`, when all are paused), at most $2 of them. Producers can invent any number of
-- names, so those that have settings or that running workers take come first. Counting stops at $1 jobs in all, so that the query takes
-- the same time at any backlog. The names are read from job_due with one index probe per name.
with recursive name(queue) as (
    (select job.queue from pitwheel.job order by job.queue limit 1)
    union all
    select (select job.queue from pitwheel.job where job.queue > name.queue order by job.queue limit 1)
    from name
    where name.queue is not null
),
served as (
    select queue.name as queue from pitwheel.queue where queue.name <> '*' or queue.paused_at is not null
    union
    select taken.queue
    from (select distinct unnest(worker.queues) as queue from pitwheel.worker where worker.dead_at is null) as taken
    where taken.queue = (select job.queue from pitwheel.job where job.queue >= taken.queue order by job.queue limit 1)
),
known as (
    select listed.queue
    from (
        select served.queue, 0 as turn from served
        union all
        (select name.queue, 1 from name where name.queue is not null limit $2)
    ) as listed
    group by listed.queue
    order by min(listed.turn), listed.queue
    limit $2
)
select known.queue as name, queue.paused_at, everything.paused_at as all_paused_at,
    counted.waiting, counted.running, counted.later, counted.blocked, counted.oldest_due_at,
    counted.waiting + counted.running + counted.later + counted.blocked >= share.rows as capped
from known
cross join (select $1 / greatest(count(*), 1) + 10 as rows from known) as share
left join pitwheel.queue on queue.name = known.queue
left join pitwheel.queue as everything on everything.name = '*'
left join lateral (
    select count(*) filter (where seen.holder is null and seen.run_at <= now()) as waiting,
        count(*) filter (where seen.holder is not null) as running,
        count(*) filter (where seen.holder is null and seen.run_at > now() and seen.run_at < 'infinity') as later,
        count(*) filter (where seen.run_at = 'infinity') as blocked,
        min(seen.run_at) filter (where seen.holder is null and seen.run_at <= now()) as oldest_due_at
    from (
        select job.holder, job.run_at
        from pitwheel.job
        where job.queue = known.queue
        order by job.queue, job.priority, job.run_at, +job.id -- so that job_due is used: a scan of the table could read all of it
        limit share.rows
    ) as seen
) as counted on true
order by known.queue
