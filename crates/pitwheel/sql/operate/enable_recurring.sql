-- enable_recurring.sql: enables a recurring job; its head in 0005_recurring.sql says what that means.
-- Zero rows: there is none with this id.
with done as materialized (
    select done.changed, done.queue, done.next_run_at, done.reason
    from pitwheel.enable_recurring($1) as done
),
audited as (
    insert into pitwheel.audit (actor, action, subject)
    select $2, 'recurring.enable', (select recurring.kind || ' ' || recurring.key from pitwheel.recurring where recurring.id = $1)
    from done
    where done.changed
      and $2::text is not null
)
select done.changed, done.queue, (extract(epoch from done.next_run_at) * 1000000)::bigint as next_us, done.reason,
    coalesce(done.next_run_at <= clock_timestamp(), false) as due
from done
