-- lock_source.sql: locks a source before its recurring job is changed. Uses source_pkey. Zero rows: there is no such source.
select id, priority, fetch_interval_minutes, recurring_id, disabled_because, next_fetch_at
from feeds.source
where id = $1
for update
