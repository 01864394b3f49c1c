-- unplanned.sql: the next $1 enabled recurring jobs above the id $2 whose next run is to be planned, as recurrences.sql has them, and when
-- the last run started that was settled without a plan. Uses recurring_unplanned.
select recurring.id, recurring.key, recurring.cadence, recurring.misfire, recurring.version, recurring.anchor_at,
    recurring.interval_ms, clock_timestamp() as now, recurring.consecutive_failures, false as carried, recurring.started_at
from pitwheel.recurring
where recurring.enabled
  and not recurring.planned
  and recurring.id > $2
order by recurring.id
limit $1
