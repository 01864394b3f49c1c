-- recurrences.sql: what the times of the next runs of these recurring jobs depend on. Uses recurring_pkey.
-- Apart from the claims, most of which have no runs: each would pay for preparing to read this.
-- Rows not returned: the recurring job was deleted.
select recurring.id, recurring.key, recurring.cadence, recurring.misfire, recurring.version, recurring.anchor_at,
    recurring.interval_ms, recurring.consecutive_failures, clock_timestamp() as now
from pitwheel.recurring
where recurring.id = any ($1::bigint[])
