-- done_runs.sql: claimed runs of recurring jobs are done; the fast path of finish_runs.sql, for runs without a result and followers.
-- Counts each in its recurring job and, while that is enabled, enqueues the next run; with `history` the job moves to the
-- history. Holds that were emptied before are deleted.
-- Finds each job by the ctid it had when it was claimed, as done.sql does, and each recurring job by recurring_pkey. The series
-- makes the planner expect a large batch, which it then joins by hash.
-- Rows not returned: the row has moved since, or that claim no longer holds the job; finish_runs.sql decides. A job or a recurring
-- job that another transaction has locked ends the statement after lock_timeout.
with emptied as (
    delete from pitwheel.hold
    where hold.id = any($5::bigint[])
),
plan as materialized (
    select plan.id, plan.history, plan.recurring, plan.version,
        timestamptz 'epoch' + plan.next_us * interval '1 microsecond' as next_run_at,
        timestamptz 'epoch' + plan.anchor_us * interval '1 microsecond' as anchor_at, plan.reason, plan.interval_ms, plan.skipped
    from rows from (
        unnest($1::bigint[]), unnest($6::bool[]), unnest($7::bigint[]), unnest($8::bigint[]), unnest($9::bigint[]),
        unnest($10::bigint[]), unnest($11::text[]), unnest($12::bigint[]), unnest($13::bigint[]),
        generate_series(1, cardinality($1::bigint[]))
    ) as plan(id, history, recurring, version, next_us, anchor_us, reason, interval_ms, skipped, n)
),
gone as (
    delete from pitwheel.job
    where job.ctid = any($4::tid[])
      and ((job.id, job.fence, job.holder) in (
          select claim.id, claim.fence, claim.holder
          from unnest($1::bigint[], $2::bigint[], $3::bigint[]) as claim(id, fence, holder)
      )) is true
      and job.recurring is not null
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
    from plan
    join gone on gone.id = plan.id
    where plan.history
),
advanced as (
    update pitwheel.recurring
    set runs = recurring.runs + 1,
        skipped = recurring.skipped + plan.skipped,
        last_run_at = clock_timestamp(),
        consecutive_failures = 0,
        last_error = null,
        interval_ms = case when plan.version = recurring.version then plan.interval_ms else recurring.interval_ms end,
        anchor_at = case when plan.version = recurring.version then plan.anchor_at else recurring.anchor_at end,
        next_run_at = case when plan.version = recurring.version then plan.next_run_at else recurring.next_run_at end,
        reason = case when plan.version = recurring.version then plan.reason else recurring.reason end
    from plan
    where recurring.id = any($7::bigint[])
      and recurring.id + 0 = plan.recurring
      and exists (select from gone where gone.id = plan.id)
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
select gone.id, gone.fence, gone.holder, true as written
from gone
