-- recurring_list.sql: recurring jobs, newest first, one page at a time, without their payloads. Scans at most $6 rows below the id $1,
-- since a filter may match few; `floor` is the id down to which all rows were scanned; null: there are no more.
-- Uses recurring_pkey and job_recurring.
with scanned as materialized (
    select recurring.id
    from pitwheel.recurring
    where recurring.id < $1
    order by recurring.id desc
    limit $6
),
bottom as (
    select min(scanned.id) as floor from scanned having count(*) >= $6
)
select recurring.id, recurring.kind, recurring.key, recurring.queue, recurring.priority, recurring.timeout_ms,
    recurring.max_attempts, recurring.cadence, recurring.misfire, recurring.enabled, recurring.next_run_at, recurring.reason,
    recurring.interval_ms, recurring.runs, recurring.skipped, recurring.last_run_at, recurring.last_error,
    recurring.consecutive_failures, recurring.created_at, recurring.updated_at,
    recurring.running,
    exists (select from pitwheel.kind where kind.name = recurring.kind and kind.redacted) as redacted,
    bottom.floor
from (select max(bottom.floor) as floor from bottom) as bottom
left join lateral (
    select recurring.id, recurring.kind, recurring.key, recurring.queue, recurring.priority, recurring.timeout_ms,
    recurring.max_attempts, recurring.cadence, recurring.misfire, recurring.enabled, recurring.next_run_at, recurring.reason,
    recurring.interval_ms, recurring.runs, recurring.skipped, recurring.last_run_at, recurring.last_error,
    recurring.consecutive_failures, recurring.created_at, recurring.updated_at, recurring.running
    from pitwheel.recurring_now as recurring
    where recurring.id < $1
      and recurring.id >= coalesce(bottom.floor, 0)
      and ($2::text is null or recurring.kind = $2)
      and ($3::text is null or recurring.queue = $3)
      and ($4::bool is null or recurring.enabled = $4)
    order by recurring.id desc
    limit $5
) as recurring on true
order by recurring.id desc nulls last
