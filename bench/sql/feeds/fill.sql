-- fill.sql: $1 sources on $2 hosts at port $3, all due, each with its recurring job.
with sources as (
    insert into feeds.source (url, name, priority, fetch_interval_minutes)
    select format('http://127.%s.%s.1:%s/%s', 1 + n % $2 / 250, n % $2 % 250, $3::int, n), n::text, 0, 60
    from generate_series(0, $1::int - 1) as n
    returning id
)
select count(*)
from sources
cross join lateral pitwheel.create_recurring(
    kind => 'fetch_feed', key => sources.id::text, cadence => 'every 1h', queue => 'feeds',
    payload => json_build_object('source_id', sources.id)
)
