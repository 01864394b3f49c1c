-- job.sql: one job, live or finished, with all its columns. Zero rows: no such job, or its history was pruned.
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
(select job.id, job.kind, job.queue,
    case when job.holder is not null then 'running' when job.run_at = 'infinity' then 'blocked' else 'waiting' end as state,
    job.priority, job.attempt, job.max_attempts, job.key,
    case when job.run_at = 'infinity' then coalesce(job.lane_at, job.enqueued_at) else job.run_at end as run_at,
    job.enqueued_at, job.claimed_at,
    null::timestamptz as finished_at, job.progress, job.note, job.fence, job.crashes, job.timeout_ms,
    job.cancel_requested_at, worker.name as worker, job.payload::text as payload, job.metadata::text as metadata,
    null::text as result, coalesce(job.errors, '[]') as errors, job.recurring, job.lane, job.pipeline, job.step,
    exists (select from pitwheel.kind where kind.name = job.kind and kind.redacted) as redacted,
    job.holder is null and job.kind not in (select served.kind from served) as unserved
from pitwheel.job
left join pitwheel.worker on worker.id = job.holder
where job.id = $1)
union all
select history.id, history.kind, history.queue, history.state,
    history.priority, history.attempt, history.max_attempts, history.key, history.run_at, history.enqueued_at,
    history.claimed_at, history.finished_at, null::real, history.note, history.fence, history.crashes, history.timeout_ms,
    null::timestamptz, worker.name, history.payload::text, history.metadata::text,
    history.result::text, coalesce(history.errors, '[]'), history.recurring, history.lane, history.pipeline,
    history.step,
    exists (select from pitwheel.kind where kind.name = history.kind and kind.redacted), false
from pitwheel.job_history as history
left join pitwheel.worker on worker.id = history.worker
where history.id = $1
limit 1
