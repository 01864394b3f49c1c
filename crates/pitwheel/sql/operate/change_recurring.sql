-- change_recurring.sql: gives a recurring job another cadence. Zero rows: there is none with this id.
with done as materialized (
    select done.changed, done.queue, done.next_run_at, done.reason
    from pitwheel.change_recurring(
        $1, $3, $4, timestamptz 'epoch' + $5 * interval '1 microsecond', timestamptz 'epoch' + $6 * interval '1 microsecond', $7
    ) as done
),
audited as (
    insert into pitwheel.audit (actor, action, subject)
    select $2, 'recurring.change', (
        select recurring.kind || ' ' || recurring.key || ': ' || $3 from pitwheel.recurring where recurring.id = $1
    )
    from done
    where $2::text is not null
)
select done.changed, done.queue, (extract(epoch from done.next_run_at) * 1000000)::bigint as next_us, done.reason,
    coalesce(done.next_run_at <= clock_timestamp(), false) as due
from done
