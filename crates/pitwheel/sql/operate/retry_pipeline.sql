-- retry_pipeline.sql: what is dead, cancelled or skipped of a pipeline runs again. Zero rows: there is none with this id.
with done as materialized (
    select done.changed, done.due
    from pitwheel.retry_pipeline($1) as done
),
audited as (
    insert into pitwheel.audit (actor, action, subject)
    select $2, 'pipeline.retry', $1::bigint::text
    from done
    where done.changed
)
select done.changed, done.due
from done
