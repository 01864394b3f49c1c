-- restore_runs.sql: enqueues the next runs of these recurring jobs again, at their times, if they are enabled, planned, and still have
-- no live job. A row that another transaction has locked is skipped; the next look finds it again. Uses recurring_pkey.
with locked as materialized (
    select recurring.id, recurring.kind, recurring.queue, recurring.payload, recurring.metadata, recurring.priority,
        recurring.max_attempts, recurring.timeout_ms, recurring.next_run_at
    from pitwheel.recurring
    where recurring.id = any($1::bigint[])
      and recurring.enabled
      and recurring.planned
    order by recurring.id
    for no key update skip locked
)
insert into pitwheel.job (recurring, kind, queue, payload, metadata, priority, max_attempts, timeout_ms, run_at, enqueued_at)
select locked.id, locked.kind, locked.queue, locked.payload, locked.metadata, locked.priority,
    coalesce(locked.max_attempts, 2147483647), locked.timeout_ms, greatest(locked.next_run_at, clock_timestamp()),
    clock_timestamp()
from locked
on conflict (recurring) where recurring is not null do nothing
returning recurring
