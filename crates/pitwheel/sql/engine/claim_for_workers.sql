-- claim_for_workers.sql: claims like claim.sql, for many workers at once: the n-th due job, in the order of their ids, goes to the
-- worker of the n-th slot. Uses job_due and finds levels, kinds and rows in the same way. A queue earlier in the list is read first;
-- the caller rotates the list. Bisection in the sorted ids finds the slot of each job: a join with `due` could be planned to compare
-- every row with every ctid.
-- The row of the first job returns the holds that were created, and how many slots have workers that are alive and not quiet.
-- Zero rows: nothing is due, the queues are paused, or all the workers were declared dead or are quiet.
with slots as materialized (
    select array_agg(slot.worker order by slot.n) as workers, count(*) as count
    from unnest($1::bigint[]) with ordinality as slot(worker, n)
    where (slot.worker in (
        select worker.id
        from pitwheel.worker
        where worker.id = any($2::bigint[]) and worker.dead_at is null and worker.quiet_at is null
    )) is true
),
asked as materialized (
    select ask.queue, ask.first
    from unnest($3::text[], $4::int[]) with ordinality as ask(queue, first, n)
    where not exists (
        select from pitwheel.queue
        where queue.name in (ask.queue, '*') and queue.paused_at is not null
    )
    order by ask.n
),
used as materialized (
    select distinct used_priority.priority
    from pitwheel.used_priority
    order by used_priority.priority desc
),
due as materialized (
    select job.tid, job.id
    from asked
    cross join lateral (
        select job.tid, job.id
        from used
        cross join lateral (select asked.first + 9 - used.priority as n) as level
        cross join lateral (
            select job.ctid as tid, job.id
            from pitwheel.job
            where job.queue = asked.queue
              and job.priority = used.priority
              and (job.run_at, +job.id) > (($5::timestamptz[])[level.n], ($6::bigint[])[level.n])
              and job.run_at <= now()
              and job.holder is null
              and job.crashes < 2
              and (job.kind in (select unnest($7::text[]))) is true
            order by job.run_at, +job.id
            limit (select slots.count from slots)
            for no key update skip locked
        ) as job
        limit (select slots.count from slots)
    ) as job
    limit (select slots.count from slots)
),
sorted as materialized (
    select array_agg(due.id order by due.id) as ids
    from due
),
held as (
    insert into pitwheel.hold (worker, job_ids)
    select slots.workers[claimed.n], array_agg(claimed.id)
    from sorted, unnest(sorted.ids) with ordinality as claimed(id, n), slots
    group by slots.workers[claimed.n]
    returning hold.worker, hold.id
)
update pitwheel.job
set holder = (select slots.workers from slots)[width_bucket(job.id, (select sorted.ids from sorted))],
    fence = job.fence + 1, attempt = job.attempt + 1, claimed_at = clock_timestamp()
where job.ctid = any (array(select due.tid from due))
returning job.id, job.fence, job.attempt, job.max_attempts, job.timeout_ms, job.run_at, job.priority, job.queue, job.kind,
    job.key, job.payload::text, job.metadata::text, job.ctid, job.recurring, job.lane, job.pipeline, job.step,
    job.recurring_key, job.cadence, job.misfire, job.version, job.anchor_at, job.interval_ms, job.claimed_at,
    job.holder,
    case when job.id = (select sorted.ids[1] from sorted) then array(select held.worker from held) end as holding,
    case when job.id = (select sorted.ids[1] from sorted) then array(select held.id from held) end as holds,
    case when job.id = (select sorted.ids[1] from sorted) then (select slots.count from slots) end as alive_slots
