-- retry_pipeline.sql: what is dead, cancelled or skipped of a pipeline runs again. `due` is the queues in which it has a job that is due
-- now, and `lanes` the lanes that its jobs entered, which are to be promoted after this. Zero rows: there is none with this id.
with done as materialized (
    select done.changed, done.due
    from pitwheel.retry_pipeline($1) as done
),
audited as (
    insert into pitwheel.audit (actor, action, subject)
    select $2, 'pipeline.retry', $1::bigint::text
    from done
    where done.changed
),
entered as materialized (
    select pitwheel.entered_lanes() as lanes
    where (select count(*) from done) > 0
)
select done.changed, done.due, entered.lanes
from done
left join entered on true
