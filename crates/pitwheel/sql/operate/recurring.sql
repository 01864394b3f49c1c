-- recurring.sql: one recurring job with its payload, by its id ($1), or by its kind and key. Zero rows: there is none.
-- Uses recurring_pkey or recurring_key, and job_recurring.
with wanted as materialized (
    (select recurring.id from pitwheel.recurring where recurring.id = $1)
    union all
    (select recurring.id from pitwheel.recurring where recurring.kind = $2 and recurring.key = $3)
)
select recurring.id, recurring.kind, recurring.key, recurring.queue, recurring.priority, recurring.timeout_ms,
    recurring.max_attempts, recurring.cadence, recurring.misfire, recurring.enabled, recurring.next_run_at, recurring.reason,
    recurring.interval_ms, recurring.runs, recurring.skipped, recurring.last_run_at, recurring.last_error,
    recurring.consecutive_failures, recurring.created_at, recurring.updated_at,
    recurring.payload::text, recurring.metadata::text, recurring.version,
    (extract(epoch from recurring.anchor_at) * 1000000)::bigint as anchor_us, clock_timestamp() as now, recurring.running,
    exists (select from pitwheel.kind where kind.name = recurring.kind and kind.redacted) as redacted
from pitwheel.recurring_now as recurring
where recurring.id = (select wanted.id from wanted limit 1)
