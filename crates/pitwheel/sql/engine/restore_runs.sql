-- restore_runs.sql: enqueues the next runs of these recurring jobs again, if they are enabled, planned, and still have no live job; see
-- pitwheel.restore_run. A row that another transaction has locked is skipped; the next look finds it again. Uses recurring_pkey.
with locked as materialized (
    select recurring.id
    from pitwheel.recurring
    where recurring.id = any($1::bigint[])
      and recurring.enabled
      and recurring.planned
    order by recurring.id
    for no key update skip locked
)
select locked.id
from locked
where pitwheel.restore_run(locked.id)
