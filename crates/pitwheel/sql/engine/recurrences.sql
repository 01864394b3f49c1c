-- recurrences.sql: what the times of the next runs of these recurring jobs depend on, and whether their runs carry it.
-- Uses recurring_pkey and job_recurring.
-- Apart from the claims, most of which have no runs that need it: each would pay for preparing to read this.
-- Rows not returned: the recurring job was deleted.
select recurring.id, recurring.key, recurring.cadence, recurring.misfire, recurring.version,
    coalesce(live.anchor_at, recurring.anchor_at) as anchor_at,
    case when live.anchor_at is not null then live.interval_ms else recurring.interval_ms end as interval_ms,
    clock_timestamp() as now, recurring.consecutive_failures, live.anchor_at is not null as carried
from pitwheel.recurring
left join lateral (
    select job.anchor_at, job.interval_ms
    from pitwheel.job
    where job.recurring = recurring.id
    limit 1
) as live on true
where recurring.id = any ($1::bigint[])
