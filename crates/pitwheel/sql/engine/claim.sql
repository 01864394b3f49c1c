-- claim.sql: claims due jobs for one worker, at most the given slots of each queue, and records them in one hold.
-- Uses job_due, which ends with `+id`: every level (a priority of a queue) is read from its lower bound, in index order, and no
-- further than needed. The update changes no indexed column and finds its rows by ctid, which cannot change while the row is locked.
-- The ctids are an array, because a join could be planned as a scan of the whole table. A queue has 19 bounds, from the index $4 on,
-- that of priority 9 first; only the levels of priorities that jobs have had are read. The kinds are a hashed subplan: an array of
-- 1,000 would be searched from its start for every row.
-- Zero rows: nothing is due, the queues are paused, or the worker was declared dead or is quiet.
with asked as materialized (
    select ask.queue, ask.slots, ask.first
    from unnest($2::text[], $3::int[], $4::int[]) as ask(queue, slots, first)
    where exists (select from pitwheel.worker where worker.id = $1 and worker.dead_at is null and worker.quiet_at is null)
      and not exists (
          select from pitwheel.queue
          where queue.name in (ask.queue, '*') and queue.paused_at is not null
      )
),
used as materialized (
    select distinct used_priority.priority
    from pitwheel.used_priority
    order by used_priority.priority desc
),
due as materialized (
    select head.tid, head.id
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
            limit asked.slots
            for no key update skip locked
        ) as job
        limit asked.slots
    ) as head
),
held as (
    insert into pitwheel.hold (worker, job_ids)
    select $1, array_agg(due.id)
    from due
    having count(*) > 0
    returning hold.id
)
update pitwheel.job
set holder = $1, fence = job.fence + 1, attempt = job.attempt + 1, claimed_at = clock_timestamp()
where job.ctid = any (array(select due.tid from due))
returning job.id, job.fence, job.attempt, job.max_attempts, job.timeout_ms, job.run_at, job.priority, job.queue, job.kind,
    job.key, job.payload::text, job.metadata::text, job.ctid, job.recurring, job.lane, job.pipeline, job.step,
    job.recurring_key, job.cadence, job.misfire, job.version, job.anchor_at, job.interval_ms, job.claimed_at,
    (select held.id from held) as hold
