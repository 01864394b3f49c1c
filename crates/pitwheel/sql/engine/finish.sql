-- finish.sql: the claimed jobs are done, dead or cancelled, and move to the history; without a state they leave none. Holds
-- that were emptied before go too.
-- Rows not returned: that claim no longer holds the job (swept, claimed again, or settled before).
with emptied as (
    delete from pitwheel.hold
    where hold.id = any($6::bigint[])
),
gone as (
    delete from pitwheel.job
    using unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::text[])
        as ended(id, fence, state, error, result)
    where job.id = ended.id
      and job.fence = ended.fence
      and job.holder is not null
    returning job.id, job.run_at, job.enqueued_at, job.fence, job.attempt, job.max_attempts, job.priority, job.crashes,
        job.queue, job.kind, job.payload, job.holder, job.claimed_at, job.timeout_ms, job.key, job.metadata, job.note,
        job.errors, ended.state, ended.error, ended.result
),
remembered as (
    insert into pitwheel.job_history (
        id, finished_at, run_at, enqueued_at, fence, attempt, max_attempts, priority, crashes, state, queue, kind, payload,
        worker, claimed_at, timeout_ms, key, metadata, note, errors, result
    )
    select gone.id, clock_timestamp(), gone.run_at, gone.enqueued_at, gone.fence, gone.attempt, gone.max_attempts,
        gone.priority, gone.crashes, gone.state, gone.queue, gone.kind, gone.payload, gone.holder, gone.claimed_at,
        gone.timeout_ms, gone.key, gone.metadata, gone.note, pitwheel.with_error(gone.errors, gone.error),
        gone.result::json
    from gone
    where gone.state is not null
)
select gone.id, gone.fence from gone
