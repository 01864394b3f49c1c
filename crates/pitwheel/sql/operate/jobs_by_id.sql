-- jobs_by_id.sql: these jobs, live or finished, without their payloads. No row for an id: no such job.
-- Each job is found by one probe of job_pkey: with `limit 1` the planner cannot join the batch with a scan of the whole index.
-- `unserved`: it waits, and no live worker takes its kind.
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
)
select job.id, job.kind, job.queue,
    case when job.holder is not null then 'running' when job.run_at = 'infinity' then 'blocked' else 'waiting' end as state,
    job.priority, job.attempt, job.max_attempts, job.key,
    case when job.run_at = 'infinity' then coalesce(job.lane_at, job.enqueued_at) else job.run_at end as run_at,
    job.enqueued_at, job.claimed_at,
    null::timestamptz as finished_at, job.progress, job.note, job.lane,
    exists (select from pitwheel.kind where kind.name = job.kind and kind.redacted) as redacted,
    job.holder is null and job.kind not in (select served.kind from served) as unserved
from (select distinct asked.id from unnest($1::bigint[]) as asked(id)) as asked
cross join lateral (
    select job.id, job.kind, job.queue, job.holder, job.priority, job.attempt, job.max_attempts, job.key, job.run_at,
        job.enqueued_at, job.claimed_at, job.progress, job.note, job.lane, job.lane_at
    from pitwheel.job
    where job.id = asked.id
    limit 1
) as job
union all
select history.id, history.kind, history.queue, history.state,
    history.priority, history.attempt, history.max_attempts, history.key, history.run_at, history.enqueued_at,
    history.claimed_at, history.finished_at, null::real, history.note, history.lane,
    exists (select from pitwheel.kind where kind.name = history.kind and kind.redacted), false
from pitwheel.job_history as history
where history.id = any($1::bigint[])
