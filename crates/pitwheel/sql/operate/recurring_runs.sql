-- recurring_runs.sql: the runs of a recurring job, live and finished, newest first, one page at a time: ids below $2.
-- `unserved`: it waits, and no live worker takes its kind.
-- Uses job_recurring and job_history_recurring.
(select job.id, job.kind, job.queue, case when job.holder is null then 'waiting' else 'running' end as state,
    job.priority, job.attempt, job.max_attempts, job.key, job.run_at, job.enqueued_at, job.claimed_at,
    null::timestamptz as finished_at, job.progress, job.note, job.lane,
    exists (select from pitwheel.kind where kind.name = job.kind and kind.redacted) as redacted,
    job.holder is null and not exists (
        select
        from pitwheel.worker
        where job.kind = any (worker.kinds)
          and worker.dead_at is null
          and worker.quiet_at is null
          and cardinality(worker.queues) > 0
    ) as unserved
from pitwheel.job
where job.recurring = $1
  and job.id < $2)
union all
(select history.id, history.kind, history.queue, history.state,
    history.priority, history.attempt, history.max_attempts, history.key, history.run_at, history.enqueued_at,
    history.claimed_at, history.finished_at, null::real, history.note, history.lane,
    exists (select from pitwheel.kind where kind.name = history.kind and kind.redacted), false
from pitwheel.job_history as history
where history.recurring = $1
  and history.id < $2
order by history.id desc
limit $3)
order by id desc
limit $3
