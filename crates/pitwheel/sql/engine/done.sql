-- done.sql: the claimed jobs are done and move to the history. Holds that were emptied before are deleted.
-- Finds each row by the ctid it had when it was claimed: one page read instead of an index lookup. The ctids are an array and the
-- claims a hashed subplan, because a join could be planned as a scan of job_pkey, or compare every row with every ctid.
-- Returns the ids of the jobs that it moved, as one array: a row for each costs both sides more. The others: the row has moved since,
-- it is a run of a recurring job or a step, or that claim no longer holds the job; finish.sql decides. A row that another transaction
-- has locked ends the statement after lock_timeout.
with emptied as (
    delete from pitwheel.hold
    where hold.ctid = any (array(
        select hold.ctid from pitwheel.hold where hold.id = any($5::bigint[]) for update skip locked
    ))
),
gone as (
    delete from pitwheel.job
    where job.ctid = any($4::tid[])
      and ((job.id, job.fence, job.holder) in (
          select claim.id, claim.fence, claim.holder
          from unnest($1::bigint[], $2::bigint[], $3::bigint[]) as claim(id, fence, holder)
      )) is true
      and job.recurring is null
      and job.pipeline is null
    returning job.id, job.run_at, job.enqueued_at, job.fence, job.attempt, job.max_attempts, job.priority, job.crashes,
        job.queue, job.kind, job.payload, job.holder, job.claimed_at, job.timeout_ms, job.key, job.metadata, job.note,
        job.errors, job.lane, job.lane_pass
),
kept as (
    insert into pitwheel.job_history (
        id, finished_at, run_at, enqueued_at, fence, attempt, max_attempts, priority, crashes, state, queue, kind, payload,
        worker, claimed_at, timeout_ms, key, metadata, note, errors, lane, lane_pass
    )
    select gone.id, clock_timestamp(), gone.run_at, gone.enqueued_at, gone.fence, gone.attempt, gone.max_attempts,
        gone.priority, gone.crashes, 'done', gone.queue, gone.kind, gone.payload, gone.holder, gone.claimed_at,
        gone.timeout_ms, gone.key, gone.metadata, gone.note, gone.errors, gone.lane, gone.lane_pass
    from gone
)
select array_agg(gone.id) as ids
from gone
