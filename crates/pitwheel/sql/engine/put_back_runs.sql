-- put_back_runs.sql: claimed runs of recurring jobs wait again: retried, snoozed, released, skipped, or taken from a dead worker. Their
-- recurring jobs take back the state that they carry, get the time and the reason, and count a failure, or the planned times that were
-- skipped.
-- With a plan ($8 not null) a run waits until its time, otherwise for a delay from now. `uncharged` does not count the attempt,
-- `crashed` counts a crash. A plan to skip planned times that was made for another version of the recurring job is not used: the change of
-- the cadence has set the time.
-- A holder of 0 is not known, and then not compared.
-- Rows not returned: the claim no longer holds the job, it is no run, a cancel was requested, its recurring job was disabled or
-- deleted, or another transaction has locked one of the two rows, which is not waited for. The caller finishes them as
-- cancelled, and finish_runs.sql tells these apart. Finds rows as finish_runs.sql does.
with back as materialized (
    select back.id, back.fence, nullif(back.holder, 0) as holder, back.delay_ms, back.uncharged, back.crashed, back.error,
        timestamptz 'epoch' + back.next_us * interval '1 microsecond' as next_run_at,
        timestamptz 'epoch' + back.anchor_us * interval '1 microsecond' as anchor_at, back.reason, back.skipped,
        back.version
    from rows from (
        unnest($1::bigint[]), unnest($2::bigint[]), unnest($3::bigint[]), unnest($4::bigint[]), unnest($5::bool[]),
        unnest($6::bool[]), unnest($7::text[]), unnest($8::bigint[]), unnest($9::bigint[]), unnest($10::text[]),
        unnest($11::bigint[]), unnest($12::bigint[]), generate_series(1, cardinality($1::bigint[]))
    ) as back(id, fence, holder, delay_ms, uncharged, crashed, error, next_us, anchor_us, reason, skipped, version, n)
),
free as materialized (
    select back.id, back.delay_ms, back.uncharged, back.crashed, back.error, back.anchor_at, job.tid, job.recurring, locked.was,
        case when plan.is_old then coalesce((locked.was).next_run_at, clock_timestamp()) else back.next_run_at end as next_run_at,
        case when not plan.is_old then back.reason end as reason,
        case when plan.is_old then 0 else back.skipped end as skipped
    from back
    cross join lateral (
        select job.ctid as tid, job.recurring, pitwheel.state_of(job.*) as state
        from pitwheel.job
        where job.id = back.id
          and job.fence = back.fence
          and job.holder = coalesce(back.holder, job.holder)
          and job.cancel_requested_at is null
          and (job.recurring is not null) is true
        limit 1
        for no key update skip locked
    ) as job
    cross join lateral (
        select recurring.enabled, recurring.version, pitwheel.with_state(recurring.*, job.state) as was
        from pitwheel.recurring
        where recurring.id >= job.recurring
          and recurring.id <= job.recurring
        order by recurring.id
        limit 1
        for no key update skip locked
    ) as locked
    cross join lateral (select (back.skipped > 0 and back.version <> locked.version) is true as is_old) as plan
    where locked.enabled
),
waiting as (
    update pitwheel.job
    set holder = null,
        claimed_at = null,
        progress = null,
        anchor_at = null,
        run_at = case
            when free.next_run_at is not null then greatest(free.next_run_at, clock_timestamp())
            else clock_timestamp() + free.delay_ms * interval '1 millisecond'
        end,
        attempt = job.attempt - free.uncharged::int,
        crashes = job.crashes + free.crashed::int,
        errors = pitwheel.with_error(job.errors, free.error)
    from free
    where job.ctid = any (array(select free.tid from free))
      and job.id + 0 = free.id
    returning job.id, job.fence, free.recurring, job.run_at
),
mirrored as (
    update pitwheel.recurring
    set next_run_at = waiting.run_at,
        anchor_at = case when free.skipped > 0 then free.anchor_at else (free.was).anchor_at end,
        interval_ms = (free.was).interval_ms,
        runs = (free.was).runs,
        skipped = (free.was).skipped + coalesce(free.skipped, 0),
        last_run_at = (free.was).last_run_at,
        consecutive_failures = recurring.consecutive_failures + (not free.uncharged)::int,
        last_error = coalesce(free.error::jsonb ->> 'message', recurring.last_error),
        reason = coalesce(free.reason, (free.was).reason),
        carried = false
    from free
    join waiting on waiting.id = free.id
    where recurring.id = any (array(select free.recurring from free))
      and recurring.id + 0 = free.recurring
)
select waiting.id, waiting.fence, coalesce(back.holder, 0) as holder, true as written
from waiting
join back on back.id = waiting.id and back.fence = waiting.fence
