-- retry.sql: a dead or cancelled job is live again, due now, with all its attempts before it. Its id, its errors and its
-- fence stay: what a holder of its first life may still write is refused.
-- Zero rows: the history holds no dead or cancelled job of this id. A live job with its key: unique violation.
with back as (
    delete from pitwheel.job_history
    where job_history.id = $1
      and job_history.state <> 'done'
    returning job_history.id, job_history.enqueued_at, job_history.fence, job_history.timeout_ms,
        job_history.max_attempts, job_history.priority, job_history.queue, job_history.kind, job_history.key,
        job_history.payload, job_history.metadata, job_history.errors
)
insert into pitwheel.job (
    id, run_at, enqueued_at, fence, timeout_ms, max_attempts, priority, queue, kind, key, payload, metadata, errors
)
select back.id, clock_timestamp(), back.enqueued_at, back.fence, back.timeout_ms, back.max_attempts, back.priority,
    back.queue, back.kind, back.key, back.payload, back.metadata, back.errors
from back
returning queue
