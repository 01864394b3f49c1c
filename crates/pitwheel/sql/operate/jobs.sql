-- jobs.sql: jobs, newest first, one page at a time, without their payloads.
-- A filter may match few rows, so the scan is limited: to so many live ($7), running ($8), finished ($9) and dead or cancelled
-- ($10) jobs. `floor` is the id down to which all rows were scanned; null: there are no more.
-- `unserved`: it waits, and no live worker takes its kind. $11: without jobs of redacted kinds.
-- Uses the primary key, the holds for running jobs, and job_history_id and job_history_unhappy.
with served as materialized (
    select distinct run.kind
    from (
        select distinct worker.kinds -- those of a fleet are the same
        from pitwheel.worker
        where worker.dead_at is null
          and worker.quiet_at is null
          and cardinality(worker.queues) > 0
    ) as fleet
    cross join unnest(fleet.kinds) as run(kind)
),
hidden as materialized (
    select kind.name from pitwheel.kind where kind.redacted and $11::bool
),
live as materialized (
    select job.id, job.kind, job.queue,
        case when job.holder is not null then 'running' when job.run_at = 'infinity' then 'blocked' else 'waiting' end as state,
        job.priority, job.attempt, job.max_attempts, job.key,
        case when job.run_at = 'infinity' then coalesce(job.lane_at, job.enqueued_at) else job.run_at end as run_at,
        job.enqueued_at, job.claimed_at, null::timestamptz as finished_at, job.progress, job.note, job.lane
    from pitwheel.job
    where job.id < $1
    order by job.id desc
    limit $7
),
held as materialized (
    select held.id, hold.worker
    from pitwheel.hold
    cross join unnest(hold.job_ids) as held(id)
    where held.id < $1
    order by held.id desc
    limit $8
),
running as (
    select job.id, job.kind, job.queue, 'running' as state,
        job.priority, job.attempt, job.max_attempts, job.key, job.run_at, job.enqueued_at, job.claimed_at,
        null::timestamptz as finished_at, job.progress, job.note, job.lane
    from held
    cross join lateral (
        select job.id, job.kind, job.queue, job.priority, job.attempt, job.max_attempts, job.key, job.run_at,
            job.enqueued_at, job.claimed_at, job.progress, job.note, job.lane
        from pitwheel.job
        where job.id = held.id and job.holder = held.worker
        limit 1 -- one index probe per job: the cost is bound to what is running
    ) as job
),
finished as materialized (
    select history.id, history.kind, history.queue, history.state,
        history.priority, history.attempt, history.max_attempts, history.key, history.run_at, history.enqueued_at,
        history.claimed_at, history.finished_at, null::real as progress, history.note, history.lane
    from pitwheel.job_history as history
    where history.id < $1
    order by history.id desc
    limit $9
),
unhappy as materialized (
    select history.id, history.kind, history.queue, history.state,
        history.priority, history.attempt, history.max_attempts, history.key, history.run_at, history.enqueued_at,
        history.claimed_at, history.finished_at, null::real as progress, history.note, history.lane
    from pitwheel.job_history as history
    where history.id < $1
      and history.state <> 'done'
    order by history.id desc
    limit $10
),
scanned as (
    -- A scan that reached its limit continues below its last row; above the highest of those ids all rows were scanned.
    select max(part.floor) as floor
    from (
        select min(live.id) as floor from live having count(*) >= $7
        union all
        select min(held.id) from held having count(*) >= $8
        union all
        select min(finished.id) from finished having count(*) >= $9
        union all
        select min(unhappy.id) from unhappy having count(*) >= $10
    ) as part
),
found as (
    table live union all table running union all table finished union all table unhappy
)
select found.id, found.kind, found.queue, found.state, found.priority, found.attempt, found.max_attempts, found.key,
    found.run_at, found.enqueued_at, found.claimed_at, found.finished_at, found.progress, found.note, found.lane,
    exists (select from pitwheel.kind where kind.name = found.kind and kind.redacted) as redacted,
    found.state in ('waiting', 'blocked') and found.kind not in (select served.kind from served) as unserved, scanned.floor
from scanned
left join found on (scanned.floor is null or found.id >= scanned.floor)
    and ($2::text is null or found.queue = $2)
    and ($3::text is null or found.kind = $3)
    and ($4::text is null or found.state = $4)
    and ($5::text is null or found.key = $5)
    and found.kind not in (select hidden.name from hidden)
order by found.id desc nulls last
limit $6
