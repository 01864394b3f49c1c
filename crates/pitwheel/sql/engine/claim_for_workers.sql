-- claim_for_workers.sql: what claim.sql does, for a node that feeds many workers: the n-th due job goes to the n-th hand held out.
-- Leans on job_due in the same way. A queue earlier in the list is served first; the caller lets them take turns.
-- The row of the first job says which holds were made. Zero rows: nothing is due, the queues are paused, or all the
-- workers were declared dead or told to be quiet.
with hands as materialized (
    select array_agg(hand.worker order by hand.n) as workers, count(*) as count
    from unnest($1::bigint[]) with ordinality as hand(worker, n)
    where hand.worker = any (array(
        select worker.id
        from pitwheel.worker
        where worker.id = any($2::bigint[]) and worker.dead_at is null and worker.quiet_at is null
    ))
),
asked as materialized (
    select ask.queue
    from unnest($3::text[]) with ordinality as ask(queue, n)
    where not exists (
        select from pitwheel.queue
        where queue.name in (ask.queue, '*') and queue.paused_at is not null
    )
    order by ask.n
),
due as materialized (
    select head.tid, head.id, (row_number() over ())::int as n
    from (
        select job.tid, job.id
        from asked
        cross join lateral (
            select level.queue, level.priority, level.run_at, level.id
            from unnest($4::text[], $5::smallint[], $6::timestamptz[], $7::bigint[])
                as level(queue, priority, run_at, id)
            where level.queue = asked.queue
        ) as level
        cross join lateral (
            select job.ctid as tid, job.id
            from pitwheel.job
            where job.queue = level.queue
              and job.priority = level.priority
              and (job.run_at, job.id) > (level.run_at, level.id)
              and job.run_at <= now()
              and job.holder is null
              and job.crashes < 2
              and job.kind = any($8::text[])
            order by job.run_at, job.id
            limit (select hands.count from hands)
            for no key update skip locked
        ) as job
        limit (select hands.count from hands)
    ) as head
),
held as (
    insert into pitwheel.hold (worker, job_ids)
    select hands.workers[due.n], array_agg(due.id)
    from due, hands
    group by hands.workers[due.n]
    returning hold.worker, hold.id
)
update pitwheel.job
set holder = (select hands.workers from hands)[due.n],
    fence = job.fence + 1, attempt = job.attempt + 1, claimed_at = clock_timestamp()
from due
where job.ctid = due.tid
returning job.id, job.fence, job.attempt, job.max_attempts, job.timeout_ms, job.run_at, job.priority, job.queue, job.kind,
    job.key, job.payload::text, job.metadata::text, job.ctid, job.holder,
    case when due.n = 1 then array(select held.worker from held) end as holding,
    case when due.n = 1 then array(select held.id from held) end as holds
