-- done_runs.sql: claimed runs of recurring jobs are done; the fast path of finish_runs.sql, for runs without a result and followers.
-- Counts each in its recurring job and, while that is enabled, enqueues the next run; with `history` the job moves to the
-- history. Holds that were emptied before are deleted.
-- Finds each job by the ctid it had when it was claimed, as done.sql does, and each recurring job by recurring_pkey. The plans are
-- arrays in the order of the recurring jobs ($6), and bisection finds the place of each: a join could compare every run with
-- every plan, once the table was analyzed without rows.
-- Returns the ids of the jobs that are done, as one array. The others: the row has moved since, or that claim no longer holds the job;
-- finish_runs.sql decides. A job or a recurring job that another transaction has locked ends the statement after lock_timeout.
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
    returning job.id, job.run_at, job.enqueued_at, job.fence, job.attempt, job.max_attempts, job.priority, job.crashes,
        job.queue, job.kind, job.payload, job.holder, job.claimed_at, job.timeout_ms, job.key, job.metadata, job.note,
        job.errors, job.recurring
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
    where ($7::bool[])[width_bucket(gone.recurring, $6::bigint[])]
),
advanced as (
    update pitwheel.recurring
    set runs = recurring.runs + 1,
        skipped = recurring.skipped + ($8::bigint[])[width_bucket(recurring.id, $6::bigint[])],
        last_run_at = clock_timestamp(),
        consecutive_failures = 0,
        last_error = null,
        next_run_at = case
            when ($9::bigint[])[width_bucket(recurring.id, $6::bigint[])] = recurring.version
            then timestamptz 'epoch' + ($10::bigint[])[width_bucket(recurring.id, $6::bigint[])] * interval '1 microsecond'
            else recurring.next_run_at
        end,
        anchor_at = case
            when ($9::bigint[])[width_bucket(recurring.id, $6::bigint[])] = recurring.version
            then timestamptz 'epoch' + ($11::bigint[])[width_bucket(recurring.id, $6::bigint[])] * interval '1 microsecond'
            else recurring.anchor_at
        end,
        interval_ms = case
            when ($9::bigint[])[width_bucket(recurring.id, $6::bigint[])] = recurring.version
            then nullif(($12::bigint[])[width_bucket(recurring.id, $6::bigint[])], 0)
            else recurring.interval_ms
        end,
        reason = case
            when ($9::bigint[])[width_bucket(recurring.id, $6::bigint[])] = recurring.version
            then ($14::text[])[($13::int[])[width_bucket(recurring.id, $6::bigint[])]]
            else recurring.reason
        end
    where recurring.id = any (array(select gone.recurring from gone))
    returning recurring.id, recurring.enabled and recurring.planned as goes_on, recurring.kind, recurring.queue, recurring.payload,
        recurring.metadata, recurring.priority, recurring.max_attempts, recurring.timeout_ms, recurring.next_run_at
),
next as (
    insert into pitwheel.job (
        recurring, kind, queue, payload, metadata, priority, max_attempts, timeout_ms, run_at, enqueued_at
    )
    select advanced.id, advanced.kind, advanced.queue, advanced.payload, advanced.metadata, advanced.priority,
        coalesce(advanced.max_attempts, 2147483647), advanced.timeout_ms, greatest(advanced.next_run_at, clock_timestamp()),
        clock_timestamp()
    from advanced
    where advanced.goes_on
)
select array_agg(gone.id) as ids
from gone
