-- delete_recurring.sql: deletes a recurring job. Zero rows: there is none with this id.
with gone as materialized (
    select gone.kind, gone.key
    from pitwheel.delete_recurring($1) as gone
),
audited as (
    insert into pitwheel.audit (actor, action, subject)
    select $2, 'recurring.delete', gone.kind || ' ' || gone.key
    from gone
    where $2::text is not null
)
select gone.kind
from gone
