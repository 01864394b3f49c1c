-- cancel.sql: cancels waiting jobs, which move to the history, and requests the cancel of running ones.
-- The rows are locked first, so that no claim comes between the two parts.
-- No row for an id: no live job has it.
with target as materialized (
    select job.id, job.holder
    from pitwheel.job
    where job.id = any($1::bigint[])
    order by job.id
    for no key update
),
gone as (
    delete from pitwheel.job
    using target
    where job.id = target.id
      and target.holder is null
    returning job.id, job.run_at, job.enqueued_at, job.fence, job.holder, job.claimed_at, job.timeout_ms, job.attempt,
        job.max_attempts, job.priority, job.crashes, job.queue, job.kind, job.key, job.payload, job.metadata, job.note,
        job.errors
),
kept as (
    insert into pitwheel.job_history (
        id, finished_at, run_at, enqueued_at, fence, worker, claimed_at, timeout_ms, attempt, max_attempts, priority,
        crashes, state, queue, kind, key, payload, metadata, note, errors
    )
    select gone.id, clock_timestamp(), gone.run_at, gone.enqueued_at, gone.fence, gone.holder, gone.claimed_at,
        gone.timeout_ms, gone.attempt, gone.max_attempts, gone.priority, gone.crashes, 'cancelled', gone.queue, gone.kind,
        gone.key, gone.payload, gone.metadata, gone.note, gone.errors
    from gone
),
asked as (
    update pitwheel.job
    set cancel_requested_at = coalesce(job.cancel_requested_at, clock_timestamp())
    from target
    where job.id = target.id
      and target.holder is not null
),
audited as (
    insert into pitwheel.audit (actor, action, job_ids)
    select $2, 'job.cancel', array_agg(target.id)
    from target
    having count(*) > 0
)
select target.id, target.holder is not null as running
from target
