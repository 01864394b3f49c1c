-- unplanned.sql: enabled recurring jobs whose next run is to be planned. Uses recurring_unplanned and recurring_pkey.
select (select recurrence.state from pitwheel.recurrence where recurrence.id = recurring.id)
from pitwheel.recurring
where recurring.enabled
  and not recurring.planned
order by recurring.id
limit $1
