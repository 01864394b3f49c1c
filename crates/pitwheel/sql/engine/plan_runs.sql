-- plan_runs.sql: enqueues the next runs of recurring jobs that are enabled, not planned, and of the version that the plan was made
-- for. One without a time cannot be planned: it is disabled, with the reason.
-- A row that another transaction has locked is skipped; the next maintenance finds it again. Uses recurring_pkey.
with plan as materialized (
    select plan.id, plan.version, timestamptz 'epoch' + plan.next_us * interval '1 microsecond' as next_run_at,
        timestamptz 'epoch' + plan.anchor_us * interval '1 microsecond' as anchor_at, plan.reason, plan.interval_ms, plan.skipped
    from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::text[], $6::bigint[], $7::bigint[])
        as plan(id, version, next_us, anchor_us, reason, interval_ms, skipped)
),
locked as materialized (
    select recurring.id, plan.next_run_at, plan.anchor_at, plan.reason, plan.interval_ms, plan.skipped
    from plan
    cross join lateral (
        select recurring.id
        from pitwheel.recurring
        where recurring.id >= plan.id
          and recurring.id <= plan.id
          and recurring.enabled
          and not recurring.planned
          and recurring.version = plan.version
        order by recurring.id
        limit 1
        for no key update skip locked
    ) as recurring
),
planned as (
    update pitwheel.recurring
    set planned = locked.next_run_at is not null,
        enabled = locked.next_run_at is not null,
        next_run_at = locked.next_run_at,
        anchor_at = coalesce(locked.anchor_at, recurring.anchor_at),
        interval_ms = coalesce(locked.interval_ms, recurring.interval_ms),
        skipped = recurring.skipped + coalesce(locked.skipped, 0),
        reason = locked.reason,
        carried = false
    from locked
    where recurring.id = any (array(select locked.id from locked))
      and recurring.id + 0 = locked.id
    returning recurring.id, recurring.enabled, recurring.kind, recurring.queue, recurring.payload, recurring.metadata,
        recurring.priority, recurring.max_attempts, recurring.timeout_ms, recurring.next_run_at
)
insert into pitwheel.job (recurring, kind, queue, payload, metadata, priority, max_attempts, timeout_ms, run_at, enqueued_at)
select planned.id, planned.kind, planned.queue, planned.payload, planned.metadata, planned.priority,
    coalesce(planned.max_attempts, 2147483647), planned.timeout_ms, greatest(planned.next_run_at, clock_timestamp()),
    clock_timestamp()
from planned
where planned.enabled
on conflict (recurring) where recurring is not null do nothing
returning recurring
