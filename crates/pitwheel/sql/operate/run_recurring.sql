-- run_recurring.sql: the next run of a recurring job is due now. Zero rows: there is none with this id.
with done as materialized (
    select done.changed, done.queue, done.enabled
    from pitwheel.run_recurring($1) as done
),
audited as (
    insert into pitwheel.audit (actor, action, subject)
    select $2, 'recurring.run', (select recurring.kind || ' ' || recurring.key from pitwheel.recurring where recurring.id = $1)
    from done
    where done.changed
      and $2::text is not null
)
select done.changed, done.queue, done.enabled
from done
