-- retry.sql: dead or cancelled jobs are live again, due now, with all their attempts. Their ids, errors and fences stay, so a late
-- write of a former holder is refused. A run of a recurring job comes back as a job of its own, beside the next run.
-- No row for an id: the history has no dead or cancelled job with it. A unique violation: a live job has the key of one of them.
with back as (
    delete from pitwheel.job_history
    where job_history.id = any($1::bigint[])
      and job_history.state <> 'done'
    returning job_history.id, job_history.enqueued_at, job_history.fence, job_history.timeout_ms,
        case when job_history.recurring is null then job_history.max_attempts else least(job_history.max_attempts, 20) end
            as max_attempts,
        job_history.priority, job_history.queue, job_history.kind, job_history.key,
        job_history.payload, job_history.metadata, job_history.errors, job_history.lane, job_history.lane_pass
),
audited as (
    insert into pitwheel.audit (actor, action, job_ids)
    select $2, 'job.retry', array_agg(back.id)
    from back
    having count(*) > 0
)
insert into pitwheel.job (
    id, run_at, enqueued_at, fence, timeout_ms, max_attempts, priority, queue, kind, key, payload, metadata, errors, lane,
    lane_pass
)
select back.id, clock_timestamp(), back.enqueued_at, back.fence, back.timeout_ms, back.max_attempts, back.priority,
    back.queue, back.kind, back.key, back.payload, back.metadata, back.errors, back.lane, back.lane_pass
from back
returning id, queue, lane
