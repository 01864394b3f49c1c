-- jobs.sql: live and finished jobs, newest first, a page at a time, without their payloads.
-- Both halves walk their id index backwards from $1; every filter may be null.
with live as (
    select job.id, job.kind, job.queue, case when job.holder is null then 'waiting' else 'running' end as state,
        job.priority, job.attempt, job.max_attempts, job.key, job.run_at, job.enqueued_at, job.claimed_at,
        null::timestamptz as finished_at, job.progress, job.note
    from pitwheel.job
    where job.id < $1
      and ($2::text is null or job.queue = $2)
      and ($3::text is null or job.kind = $3)
      and ($4::text is null or $4 = case when job.holder is null then 'waiting' else 'running' end)
    order by job.id desc
    limit $5
),
finished as (
    select history.id, history.kind, history.queue, history.state, history.priority, history.attempt,
        history.max_attempts, history.key, history.run_at, history.enqueued_at, history.claimed_at, history.finished_at,
        null::real as progress, history.note
    from pitwheel.job_history as history
    where history.id < $1
      and ($2::text is null or history.queue = $2)
      and ($3::text is null or history.kind = $3)
      and ($4::text is null or history.state = $4)
      and ($4::text is null or $4 = 'done' or history.state <> 'done')
    order by history.id desc
    limit $5
)
select live.id, live.kind, live.queue, live.state, live.priority, live.attempt, live.max_attempts, live.key, live.run_at,
    live.enqueued_at, live.claimed_at, live.finished_at, live.progress, live.note
from live
union all
select finished.id, finished.kind, finished.queue, finished.state, finished.priority, finished.attempt,
    finished.max_attempts, finished.key, finished.run_at, finished.enqueued_at, finished.claimed_at, finished.finished_at,
    finished.progress, finished.note
from finished
order by id desc
limit $5
