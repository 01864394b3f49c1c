-- cancel_pipeline.sql: cancels what is left of a pipeline. Zero rows: there is none with this id.
with done as materialized (
    select done.changed, done.requested
    from pitwheel.cancel_pipeline($1) as done
),
audited as (
    insert into pitwheel.audit (actor, action, subject)
    select $2, 'pipeline.cancel', $1::bigint::text
    from done
    where done.changed
)
select done.changed, done.requested
from done
