-- unplanned.sql: enabled recurring jobs whose next run is to be planned. Uses recurring_unplanned.
select recurrence.state
from pitwheel.recurring
join pitwheel.recurrence on recurrence.id = recurring.id
where recurring.enabled
  and not recurring.planned
order by recurring.id
limit $1
