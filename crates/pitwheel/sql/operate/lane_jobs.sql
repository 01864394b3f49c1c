-- lane_jobs.sql: the jobs of the lane $1, live and finished, newest first, one page at a time: ids below $2.
-- `unserved`: it waits, and no live worker takes its kind. $4: without jobs of redacted kinds.
-- Uses job_lane, once for the head and once for those behind it, and job_history_lane.
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
    select kind.name from pitwheel.kind where kind.redacted and $4::bool
)
select found.id, found.kind, found.queue, found.state, found.priority, found.attempt, found.max_attempts, found.key,
    found.run_at, found.enqueued_at, found.claimed_at, found.finished_at, found.progress, found.note, found.lane,
    exists (select from pitwheel.kind where kind.name = found.kind and kind.redacted) as redacted,
    found.state in ('waiting', 'blocked') and found.kind not in (select served.kind from served) as unserved
from (
    (select head.id, head.kind, head.queue, case when head.holder is null then 'waiting' else 'running' end as state,
        head.priority, head.attempt, head.max_attempts, head.key, head.run_at, head.enqueued_at, head.claimed_at,
        null::timestamptz as finished_at, head.progress, head.note, head.lane
    from (
        select job.id, job.kind, job.queue, job.holder, job.priority, job.attempt, job.max_attempts, job.key, job.run_at,
            job.enqueued_at, job.claimed_at, job.progress, job.note, job.lane
        from pitwheel.job
        where job.lane = pitwheel.lane_text($1::text::jsonb)
          and (case when job.run_at = 'infinity' then job.id else 0 end) = 0
        order by job.lane, (case when job.run_at = 'infinity' then job.id else 0 end) -- so that no other index is used
        limit 1
    ) as head
    where head.id < $2
      and head.kind not in (select hidden.name from hidden))
    union all
    (select job.id, job.kind, job.queue, 'blocked', job.priority, job.attempt, job.max_attempts, job.key,
        coalesce(job.lane_at, job.enqueued_at), job.enqueued_at, job.claimed_at, null::timestamptz, job.progress, job.note,
        job.lane
    from pitwheel.job
    where job.lane = pitwheel.lane_text($1::text::jsonb)
      and (case when job.run_at = 'infinity' then job.id else 0 end) > 0
      and (case when job.run_at = 'infinity' then job.id else 0 end) < $2
      and job.kind not in (select hidden.name from hidden)
    order by job.lane desc, (case when job.run_at = 'infinity' then job.id else 0 end) desc
    limit $3)
    union all
    (select history.id, history.kind, history.queue, history.state, history.priority, history.attempt, history.max_attempts,
        history.key, history.run_at, history.enqueued_at, history.claimed_at, history.finished_at, null::real, history.note,
        history.lane
    from pitwheel.job_history as history
    where history.lane = pitwheel.lane_text($1::text::jsonb)
      and history.id < $2
      and history.kind not in (select hidden.name from hidden)
    order by history.id desc
    limit $3)
) as found
order by found.id desc
limit $3
