-- finish_runs.sql: claimed runs of recurring jobs are done, dead or cancelled. Takes back the state that they carry, counts each in its
-- recurring job and, while that is enabled, enqueues the next run, which carries the state if this one succeeded, and the followers;
-- with a state the job moves to the history.
-- The next run is due at the given time if the plan was made for this version of the recurring job. If its cadence was changed
-- while the run was in progress, the change has set the time. Without a plan ($24 null), the maintenance plans the next run, from the
-- start of this one.
-- A job or a recurring job that another transaction has locked, or a job that changed while this ran, is not waited for: it is
-- returned with `written` false, and nothing was changed. Likewise a row with `if_cancelled`, unless a cancel was requested, or
-- the recurring job was disabled or deleted.
-- A holder of 0 is not known, and then not compared.
-- Rows not returned: that claim no longer holds the job, or it is no run. Uses job_pkey and recurring_pkey, one probe per row, as in
-- finish.sql; with `is true` the planner cannot read job_recurring instead. Followers get their ids in the order given. The series
-- makes the planner expect a large batch, which it then joins by hash.
with emptied as (
    delete from pitwheel.hold
    where hold.ctid = any (array(
        select hold.ctid from pitwheel.hold where hold.id = any($6::bigint[]) for update skip locked
    ))
),
ended as materialized (
    select ended.id, ended.fence, nullif(ended.holder, 0) as holder, ended.state, ended.error, ended.result, ended.if_cancelled,
        ended.version, timestamptz 'epoch' + ended.next_us * interval '1 microsecond' as next_run_at,
        timestamptz 'epoch' + ended.anchor_us * interval '1 microsecond' as anchor_at, ended.reason, ended.interval_ms,
        ended.skipped
    from rows from (
        unnest($1::bigint[]), unnest($2::bigint[]), unnest($20::bigint[]), unnest($3::text[]), unnest($4::text[]),
        unnest($5::text[]), unnest($19::bool[]), unnest($24::bigint[]), unnest($25::bigint[]), unnest($26::bigint[]),
        unnest($27::text[]), unnest($28::bigint[]), unnest($29::bigint[]), generate_series(1, cardinality($1::bigint[]))
    ) as ended(id, fence, holder, state, error, result, if_cancelled, version, next_us, anchor_us, reason, interval_ms, skipped, n)
),
free as materialized (
    select ended.id, ended.fence, ended.state, ended.error, ended.result, ended.if_cancelled, ended.version,
        ended.next_run_at, ended.anchor_at, ended.reason, ended.interval_ms, ended.skipped, job.tid, job.recurring,
        job.state as carried, job.claimed_at, job.cancelled, known.id is not null as known
    from ended
    cross join lateral (
        select job.ctid as tid, job.recurring, job.claimed_at, job.cancel_requested_at is not null as cancelled, pitwheel.state_of(job.*) as state
        from pitwheel.job
        where job.id = ended.id
          and job.fence = ended.fence
          and job.holder = coalesce(ended.holder, job.holder)
          and (job.recurring is not null) is true
        limit 1
        for update skip locked
    ) as job
    left join lateral (
        select recurring.id
        from pitwheel.recurring
        where recurring.id >= job.recurring
          and recurring.id <= job.recurring
        order by recurring.id
        limit 1
    ) as known on true
),
ready as materialized (
    select free.id, free.fence, free.state, free.error, free.result, free.if_cancelled, free.version, free.next_run_at,
        free.anchor_at, free.reason, free.interval_ms, free.skipped, free.tid, free.recurring, free.claimed_at,
        locked.was
    from free
    left join lateral (
        select recurring.id, recurring.enabled, pitwheel.with_state(recurring.*, free.carried) as was
        from pitwheel.recurring
        where recurring.id >= free.recurring
          and recurring.id <= free.recurring
        order by recurring.id
        limit 1
        for no key update skip locked
    ) as locked on true
    where (locked.id is not null or not free.known)
      and (not free.if_cancelled or free.cancelled or locked.enabled is not true)
),
gone as (
    delete from pitwheel.job
    where job.ctid = any (array(select ready.tid from ready))
    returning job.id, job.run_at, job.enqueued_at, job.fence, job.attempt, job.max_attempts, job.priority, job.crashes,
        job.queue, job.kind, job.payload, job.holder, job.claimed_at, job.timeout_ms, job.key, job.metadata, job.note,
        job.errors, job.recurring
),
kept as (
    insert into pitwheel.job_history (
        id, finished_at, run_at, enqueued_at, fence, attempt, max_attempts, priority, crashes, state, queue, kind, payload,
        worker, claimed_at, timeout_ms, key, metadata, note, errors, result, recurring
    )
    select gone.id, clock_timestamp(), gone.run_at, gone.enqueued_at, gone.fence, gone.attempt, gone.max_attempts,
        gone.priority, gone.crashes, ready.state, gone.queue, gone.kind, gone.payload, gone.holder, gone.claimed_at,
        gone.timeout_ms, gone.key, gone.metadata, gone.note, pitwheel.with_error(gone.errors, ready.error),
        ready.result::json, gone.recurring
    from ready
    join gone on gone.id = ready.id
    where ready.state is not null
),
advanced as (
    update pitwheel.recurring
    set runs = (ready.was).runs + (not ready.if_cancelled)::int,
        skipped = (ready.was).skipped + case
            when ready.version is null and not ready.if_cancelled
                then pitwheel.skips_planned(ready.was, ready.claimed_at)::int
            else coalesce(ready.skipped, 0)
        end,
        last_run_at = case when ready.if_cancelled then (ready.was).last_run_at else clock_timestamp() end,
        consecutive_failures = case
            when coalesce(ready.state, 'done') = 'done' then 0
            when ready.state = 'dead' or ready.if_cancelled and ready.error is not null then recurring.consecutive_failures + 1
            else recurring.consecutive_failures
        end,
        last_error = case
            when coalesce(ready.state, 'done') <> 'done' then coalesce(ready.error::jsonb ->> 'message', recurring.last_error)
        end,
        interval_ms = case when ready.version = recurring.version then ready.interval_ms else (ready.was).interval_ms end,
        anchor_at = case
            when ready.version = recurring.version and not ready.if_cancelled then ready.anchor_at else (ready.was).anchor_at
        end,
        next_run_at = case
            when ready.version = recurring.version and not ready.if_cancelled then ready.next_run_at
            when ready.version is not null and not ready.if_cancelled or not recurring.enabled then (ready.was).next_run_at
            when pitwheel.stays_planned(ready.was, ready.claimed_at) then (ready.was).anchor_at -- it ran before its planned time
        end,
        reason = case
            when ready.version = recurring.version and not ready.if_cancelled then ready.reason
            when ready.version is not null and not ready.if_cancelled or not recurring.enabled then (ready.was).reason
            else 'to be planned'
        end,
        planned = case
            when recurring.enabled and (ready.version is null or ready.if_cancelled)
                then pitwheel.stays_planned(ready.was, ready.claimed_at)
            else recurring.planned
        end,
        started_at = case
            when ready.version is null or ready.if_cancelled then ready.claimed_at else recurring.started_at
        end,
        carried = recurring.enabled and recurring.planned and (ready.version is not null and not ready.if_cancelled)
            and coalesce(ready.state, 'done') = 'done'
    from ready
    where recurring.id = any (array(select ready.recurring from ready))
      and recurring.id + 0 = ready.recurring
      and exists (select from gone where gone.id = ready.id)
    returning recurring.id, recurring.enabled and recurring.planned as goes_on, recurring.kind, recurring.queue, recurring.payload,
        recurring.metadata, recurring.priority, recurring.max_attempts, recurring.timeout_ms, recurring.next_run_at,
        recurring.reason, ready.id as job_id, case when recurring.carried then recurring.anchor_at end as anchor_at,
        recurring.interval_ms, recurring.version, recurring.runs, recurring.skipped, recurring.last_run_at, recurring.key,
        recurring.cadence, recurring.misfire
),
next as (
    insert into pitwheel.job (
        recurring, kind, queue, payload, metadata, priority, max_attempts, timeout_ms, run_at, enqueued_at, anchor_at, next_run_at,
        interval_ms, version, runs, skipped, last_run_at, recurring_key, cadence, misfire, reason
    )
    select advanced.id, advanced.kind, advanced.queue, advanced.payload, advanced.metadata, advanced.priority,
        coalesce(advanced.max_attempts, 2147483647), advanced.timeout_ms, greatest(advanced.next_run_at, clock_timestamp()),
        clock_timestamp(), advanced.anchor_at, advanced.next_run_at, advanced.interval_ms, advanced.version, advanced.runs,
        advanced.skipped, advanced.last_run_at, advanced.key, advanced.cadence, advanced.misfire, advanced.reason
    from advanced
    where advanced.goes_on
),
given as materialized (
    select nextval('pitwheel.job_id_seq') as id, follower.kind, follower.payload, follower.queue, follower.delay_ms,
        follower.run_at_us, follower.priority, follower.max_attempts, follower.timeout_ms, follower.metadata, follower.key,
        follower.lane, follower.lane_pass, follower.n
    from (
        select follower.kind, follower.payload, follower.queue, follower.delay_ms, follower.run_at_us, follower.priority,
            follower.max_attempts, follower.timeout_ms, follower.metadata, follower.key, follower.lane, follower.lane_pass,
            follower.n
        from gone
        join unnest($7::bigint[], $8::bigint[], $9::text[], $10::text[], $11::text[], $12::bigint[], $13::bigint[],
            $14::smallint[], $15::int[], $16::bigint[], $17::text[], $18::text[], $21::bigint[], $22::text[], $23::bool[])
            with ordinality
            as follower(job_id, fence, kind, payload, queue, delay_ms, run_at_us, priority, max_attempts, timeout_ms,
                metadata, key, holder, lane, lane_pass, n)
            on follower.job_id = gone.id and follower.fence = gone.fence
            and gone.holder = coalesce(nullif(follower.holder, 0), gone.holder)
        order by follower.n
    ) as follower
),
followers as (
    insert into pitwheel.job (
        id, kind, payload, queue, run_at, enqueued_at, priority, max_attempts, timeout_ms, metadata, key, lane,
        lane_pass
    )
    select follower.id, follower.kind, follower.payload::json, follower.queue,
        greatest(
            timestamptz 'epoch' + follower.run_at_us * interval '1 microsecond',
            clock_timestamp() + follower.delay_ms * interval '1 millisecond'
        ),
        clock_timestamp(), follower.priority, follower.max_attempts, follower.timeout_ms, follower.metadata::json,
        follower.key, follower.lane, nullif(follower.lane_pass, false)
    from given as follower
    order by follower.kind, follower.key, follower.n
    on conflict (kind, key) where key is not null do nothing
)
select gone.id, gone.fence, gone.holder, true as written,
    (extract(epoch from advanced.next_run_at) * 1000000)::bigint as next_us, advanced.reason
from gone
left join advanced on advanced.job_id = gone.id
union all
select job.id, job.fence, job.holder, false, null, null
from ended
cross join lateral (
    select job.id, job.fence, job.holder
    from pitwheel.job
    where job.id = ended.id
      and job.fence = ended.fence
      and job.holder = coalesce(ended.holder, job.holder)
      and (job.recurring is not null) is true
    limit 1
) as job
where not exists (select from gone where gone.id = ended.id)
