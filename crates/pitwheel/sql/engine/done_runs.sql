-- done_runs.sql: claimed runs of recurring jobs are done; the fast path of finish_runs.sql, for runs without a result and followers that
-- carry the state of their recurring jobs. The next runs get the new state, and `recurring` is not read: whoever changes a recurring job
-- takes the state back, so a run that still carries it is followed by one of the same definition. With `history` the job moves to the
-- history. Holds that were emptied before are deleted.
-- Finds each job by the ctid it had when it was claimed, as done.sql does. The plans are arrays in the order of the ids ($1), and bisection
-- finds the place of each: a join could compare every run with every plan, once the table was analyzed without rows.
-- Returns the ids of the jobs that are done, as one array. The others: the row has moved since, it carries no state, or that claim no longer
-- holds the job; finish_runs.sql decides. A row that another transaction has locked ends the statement after lock_timeout.
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
      and job.anchor_at is not null
    returning job.id, job.run_at, job.enqueued_at, job.fence, job.attempt, job.max_attempts, job.priority, job.crashes,
        job.queue, job.kind, job.payload, job.holder, job.claimed_at, job.timeout_ms, job.key, job.metadata, job.note,
        job.errors, job.recurring, job.version, job.runs, job.skipped, job.recurring_key, job.cadence, job.misfire,
        width_bucket(job.id, $1::bigint[]) as n
),
kept as (
    insert into pitwheel.job_history (
        id, finished_at, run_at, enqueued_at, fence, attempt, max_attempts, priority, crashes, state, queue, kind, payload,
        worker, claimed_at, timeout_ms, key, metadata, note, errors, recurring
    )
    select gone.id, clock_timestamp(), gone.run_at, gone.enqueued_at, gone.fence, gone.attempt, gone.max_attempts,
        gone.priority, gone.crashes, 'done', gone.queue, gone.kind, gone.payload, gone.holder, gone.claimed_at,
        gone.timeout_ms, gone.key, gone.metadata, gone.note, gone.errors, gone.recurring
    from gone
    where ($6::bool[])[gone.n]
),
next as (
    insert into pitwheel.job (
        recurring, kind, queue, payload, metadata, priority, max_attempts, timeout_ms, run_at, enqueued_at, anchor_at, next_run_at,
        interval_ms, version, runs, skipped, last_run_at, recurring_key, cadence, misfire, reason
    )
    select gone.recurring, gone.kind, gone.queue, gone.payload, gone.metadata, gone.priority, gone.max_attempts, gone.timeout_ms,
        greatest(($7::timestamptz[])[gone.n], clock_timestamp()), clock_timestamp(), ($8::timestamptz[])[gone.n],
        ($7::timestamptz[])[gone.n], nullif(($9::bigint[])[gone.n], 0), gone.version, gone.runs + 1,
        gone.skipped + ($10::bigint[])[gone.n], clock_timestamp(), gone.recurring_key, gone.cadence, gone.misfire,
        ($12::text[])[($11::int[])[gone.n]]
    from gone
)
select array_agg(gone.id) as ids
from gone
